"""Style of the page: light and dark, wide and narrow, on screen and on paper."""

STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--soft:#57606a;--line:#d0d7de;
--card:#f6f8fa;--accent:#0b5cad;--gap:#e69f00;--good:#116329;--mixed:#7d4e00;
--none:#57606a;--warn:#fff8e6;--warnline:#b98a00}
@media (prefers-color-scheme:dark){:root{--bg:#0f1419;--fg:#e6e9ec;--soft:#a3adb8;
--line:#343c45;--card:#171d24;--accent:#6cb6ff;--gap:#d19000;--good:#6fdd8b;
--mixed:#f0b849;--none:#a3adb8;--warn:#2a2412;--warnline:#b98a00}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--bg);color:var(--fg);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:80rem;margin:0 auto;padding:1.2rem 1rem 4rem}
h1{font-size:1.05rem;color:var(--soft);font-weight:600;margin:.2rem 0 .8rem}
h2{font-size:1.25rem;margin:2.4rem 0 .6rem}
h3{font-size:1rem;margin:0 0 .3rem}
p,li{max-width:46rem;overflow-wrap:anywhere}
.skip{position:absolute;left:-99rem}
.skip:focus{left:1rem;top:.5rem;background:var(--bg);padding:.4rem .8rem;z-index:3}
:focus-visible{outline:3px solid var(--accent);outline-offset:2px}
.verdict{border-left:.4rem solid var(--tone);padding:.2rem 0 .2rem 1rem}
.verdict .headline{font-size:1.55rem;line-height:1.25;font-weight:700;margin:0 0 .5rem}
.good{--tone:var(--good)}.mixed{--tone:var(--mixed)}.none{--tone:var(--none)}
.mark{color:var(--tone);font-weight:700}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(11rem,1fr));gap:.8rem;
margin:1.2rem 0;padding:0}
.tiles div{background:var(--card);border:1px solid var(--line);border-radius:.5rem;
padding:.7rem .9rem}
.tiles dt{color:var(--soft);font-size:.85rem}
.tiles dd{margin:.1rem 0 0;font-size:1.25rem;font-weight:650}
.tiles small{display:block;font-weight:400;font-size:.8rem;color:var(--soft)}
.warnings{background:var(--warn);border:1px solid var(--warnline);border-radius:.5rem;
padding:.6rem 1rem .6rem 2.2rem;margin:.6rem 0}
.warnings li{margin:.35rem 0}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:.5rem}
table{border-collapse:collapse;font-size:.82rem;font-variant-numeric:tabular-nums;
width:100%}
th,td{padding:.36rem .5rem;text-align:right;white-space:nowrap;
border-bottom:1px solid var(--line)}
tr:last-child>*{border-bottom:0}
thead th{background:var(--card);vertical-align:bottom}
.fit{width:fit-content;max-width:100%}
.key{text-align:left}
th.first{position:sticky;left:0;background:var(--bg);z-index:1;text-align:left}
thead th.first{background:var(--card)}
tr.turn>*{border-top:2px solid var(--soft)}
td.best{font-weight:700}
td small{color:var(--soft)}
.star{color:var(--mixed);font-weight:700}
.diagrams{display:grid;grid-template-columns:repeat(auto-fill,minmax(15.5rem,1fr));
gap:1rem}
.curves{display:grid;gap:1rem;
grid-template-columns:repeat(auto-fit,minmax(min(100%,30rem),1fr))}
figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:.5rem;
padding:.7rem}
figcaption{font-size:.85rem;color:var(--soft)}
figcaption b{color:var(--fg)}
svg{display:block;width:100%;height:auto}
.plot{fill:var(--bg);stroke:var(--soft);stroke-width:1}
.grid{stroke:var(--line);stroke-width:.7}
.perfect{stroke:var(--soft);stroke-width:1.2;stroke-dasharray:5 4}
.gap{fill:var(--gap);fill-opacity:.45}
.band{stroke:var(--accent);stroke-width:1.4}
.point{fill:var(--accent)}
.count{fill:var(--soft);fill-opacity:.65}
.tick,.name{fill:var(--soft);font:11px system-ui,sans-serif}
.name{font-size:12px}
.curve{fill:none;stroke-width:2}
pre{background:var(--card);border:1px solid var(--line);border-radius:.5rem;
padding:.7rem .9rem;white-space:pre-wrap;overflow-wrap:anywhere;font-size:.85rem}
details{border:1px solid var(--line);border-radius:.5rem;padding:.5rem .9rem;
margin:.6rem 0}
summary{cursor:pointer;font-weight:600}
dl.words dt{font-weight:600;margin-top:.5rem}
dl.words dd{margin:0 0 0 1rem;max-width:44rem}
footer{margin-top:3rem;color:var(--soft);font-size:.85rem}
@media (max-width:34rem){.verdict .headline{font-size:1.3rem}
main{padding:.8rem .8rem 3rem}}
@media print{.scroll{overflow:visible}figure,.tiles div{break-inside:avoid}
body{font-size:12px}}
"""
