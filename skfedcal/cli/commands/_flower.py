"""``skfedcal flower``: from one machine to many; ``skfedcal site``: one of them."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from skfedcal.cli._command import (
    CheckFailedError,
    Command,
    Console,
    UsageError,
    add_common_options,
    positive_number,
)

if TYPE_CHECKING:
    from skfedcal.cli.flower.doctor import Line

# Rows of a site did not fit a request.
EXIT_ZEROS = 3

DESCRIPTION = """\
Run a calibration or an evaluation over sites that keep their data, on Flower.

  init    write an app
  keys    make keys of sites and a roster
  doctor  check an app, this machine and the configuration of a site
  check   ask connected sites whether they would answer, before a run
  try     run an app on this machine, as it would run on many
"""

EXAMPLES = """\
examples:
  skfedcal flower init calibration
  skfedcal flower try calibration
  skfedcal flower keys hospital-a --dir keys
  skfedcal flower doctor calibration --roster keys/roster.json
  skfedcal flower check flower://superlink.example.org:8443 calibration \\
      --ca ca.crt --secret superexec.secret
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the commands below ``skfedcal flower``."""
    parser.set_defaults(action=None)
    actions = parser.add_subparsers(title="commands", metavar="COMMAND")
    for action, summary, options in (
        (init, "write an app", _init_options),
        (keys, "make keys of sites and a roster", _keys_options),
        (doctor, "check an app and its surroundings", _doctor_options),
        (check, "ask sites whether they would answer", _check_options),
        (trial, "run an app on this machine", _trial_options),
    ):
        name = "try" if action is trial else action.__name__
        child = actions.add_parser(
            name,
            help=summary,
            description=action.__doc__,
            # Options may stand before and after the name of the command.
            argument_default=argparse.SUPPRESS,
            allow_abbrev=False,
        )
        options(child)
        add_common_options(child)
        child.set_defaults(action=action)


def run(args: argparse.Namespace, console: Console) -> None:
    """Run the chosen command."""
    if args.action is None:
        raise UsageError("name a command: init, keys, doctor, check or try.")
    args.action(args, console)


def _init_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", metavar="DIR", help="folder to write")
    parser.add_argument(
        "--operations",
        action="store_true",
        default=False,
        help="write proxy, services and containers in place of an app",
    )


def init(args: argparse.Namespace, console: Console) -> None:
    """Write an app: pyproject.toml with the run config, client.py and server.py.

    With --operations: configuration of a reverse proxy (nginx), units of systemd and
    compose files, for the operator and for sites.
    """
    from skfedcal.cli.flower.project import write_app

    paths = [str(p) for p in write_app(args.dir, operations=args.operations)]
    text = "\n".join(f"written {path}" for path in paths)
    console.result(text, {"written": paths})
    if args.operations:
        return
    console.progress(
        f"set `method` and `classes` in {paths[0]}, then `skfedcal flower try "
        f"{args.dir}`"
    )


def _keys_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sites", metavar="SITE", nargs="*", default=[], help="gets a key"
    )
    parser.add_argument(
        "--dir", metavar="DIR", default=".", help="where keys and roster.json are"
    )
    parser.add_argument(
        "--join",
        metavar="ROSTER",
        nargs="+",
        default=[],
        help="rosters of other sites to take into roster.json",
    )
    parser.add_argument(
        "--operator",
        action="store_true",
        default=False,
        help="make the key of the operator, who signs what sites are asked",
    )
    for name, metavar, text in (
        ("add", "FILE", "rosters of new sites, or NAME.rotation.json: next version"),
        ("remove", "SITE", "sites that leave: next version of the roster"),
        ("install", "FILE", "a newer roster, and statements about changed keys"),
    ):
        parser.add_argument(
            f"--{name}", metavar=metavar, nargs="+", default=[], help=text
        )
    parser.add_argument(
        "--rotate",
        metavar="NAME",
        default=None,
        help="make the next key of a site, or of the operator",
    )


def keys(args: argparse.Namespace, console: Console) -> None:
    """Make a key for each SITE, and put all public halves into DIR/roster.json.

    A key stays at its site. Sites exchange their rosters, join them, and compare the
    fingerprint. With the key of an operator in the roster, sites answer only what the
    operator signed. When sites enter, leave or change their keys, --add and --remove
    make the next version of DIR/roster.json, which the sites put in place with
    --install.
    """
    from skfedcal.cli.flower.project import (
        NO_OPERATOR,
        OPERATOR,
        ROSTER,
        change_roster,
        fingerprint,
        install_roster,
        make_keys,
        rotate_key,
    )

    operator = args.rotate == "operator"
    changing = bool(args.add or args.remove or operator)
    rotating = bool(args.rotate) and not operator
    first = bool(args.sites or args.join or args.operator)
    if first + changing + rotating + bool(args.install) != 1:
        raise UsageError(
            "name a site, or pass --operator or --join ROSTER; or --add and --remove; "
            "or --rotate NAME; or --install ROSTER."
        )
    paths: list[Path] = []
    changes: list[str] = []
    if rotating:
        paths = rotate_key(args.rotate, args.dir)
        text = (
            f"written {paths[0]}: takes the place of {args.rotate}.key when the roster "
            f"has it\nwritten {paths[1]}: send it to the operator and to every site"
        )
        console.result(text, {"written": [str(path) for path in paths]})
        return
    if args.install:
        roster, changes = install_roster(args.dir, args.install[0], args.install[1:])
    elif changing:
        roster, changes = change_roster(
            args.dir,
            add=args.add,
            remove=args.remove,
            rotate=["operator"] if operator else (),
        )
    else:
        paths, roster = make_keys(
            args.sites, args.join, args.dir, operator=args.operator
        )
    data = {
        "keys": [str(path) for path in paths],
        "roster": str(Path(args.dir, ROSTER)),
        "sites": sorted(roster.sites),
        "operator": None if roster.operator is None else roster.operator.hex(),
        "version": roster.version,
        "changes": changes,
        "fingerprint": fingerprint(roster),
    }
    places = {OPERATOR: "with the operator"}
    lines = [
        f"written {path}: keep it {places.get(path.name, 'at the site')}"
        for path in paths
    ]
    lines += changes
    version = f", version {roster.version}" if roster.version else ""
    there = "reload the site" if args.install else "send it to every site"
    if args.join:
        there = "compare the fingerprint with the other sites, by telephone"
    number = f"{len(roster.sites)} site{'s' * (len(roster.sites) != 1)}"
    lines += [
        f"written {data['roster']}: {number}{version}; {there}",
        f"fingerprint {data['fingerprint']}",
    ]
    if roster.operator is None:
        lines.append(NO_OPERATOR)
    console.result("\n".join(lines), data)


def _doctor_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", metavar="DIR", nargs="?", default=None, help="an app")
    parser.add_argument(
        "--port",
        type=_port,
        action="append",
        dest="ports",
        default=[],
        metavar="N",
        help="port to be listened on (default: 8000 with DIR, 9094 with --site)",
    )
    for name, text in (
        ("ca", "certificate of the authority"),
        ("cert", "certificate of the SuperLink"),
        ("key", "private key of the SuperLink"),
        ("roster", "roster of the sites"),
        ("site", "TOML file of a site"),
    ):
        parser.add_argument(f"--{name}", metavar="FILE", default="", help=text)


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 2**16:
        raise argparse.ArgumentTypeError(
            f"{text} is not a port number: pass 1 to 65535"
        )
    return int(text)


def doctor(args: argparse.Namespace, console: Console) -> None:
    """Check versions, an app, ports, certificates, roster and site configuration."""
    _show(list(_findings(args)), console)


def _show(lines: list[Line], console: Console) -> None:
    data = {"checks": [line._asdict() for line in lines]}
    width = max(len(line.what) for line in lines)
    text = "\n".join(f"{v:<4}  {what:<{width}}  {t}" for v, what, t in lines)
    console.result(text, data)
    failed = sum(line.verdict == "fail" for line in lines)
    if failed:
        raise CheckFailedError(f"{failed} of {len(lines)} checks failed.")


def _findings(args: argparse.Namespace) -> Iterator[Line]:
    from skfedcal.cli.flower import doctor
    from skfedcal.cli.flower.doctor import check_certificates

    versions = list(doctor.check_versions())
    yield from versions
    usable = all(line.verdict != "fail" for line in versions)
    yield from doctor.check_environment(os.environ)
    ports = list(args.ports)
    if args.dir is not None:
        yield from doctor.check_app(args.dir)
        yield from doctor.check_connections(os.environ)
        ports = ports or [doctor.SUPERLINK_PORT]
    if args.site and usable:
        yield from doctor.check_site(args.site)
        ports = ports or [doctor.SUPERNODE_PORT]
    yield from doctor.check_ports(ports)
    if usable and (args.dir is not None or args.ca or args.cert or args.key):
        yield from check_certificates(args.ca, args.cert, args.key)
    if usable and args.roster:
        yield from doctor.check_roster(args.roster, args.dir)


def _check_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("address", metavar="ADDRESS", help="flower://host:port")
    parser.add_argument(
        "dir",
        metavar="DIR",
        nargs="?",
        default=None,
        help="an app whose run is to be checked (default: who is there)",
    )
    for name, text in (
        ("ca", "certificate of the authority (default: none, without TLS)"),
        ("secret", "file of the SuperLink's --superexec-auth-secret-file"),
    ):
        parser.add_argument(f"--{name}", metavar="FILE", default=None, help=text)
    parser.add_argument(
        "--wait",
        type=positive_number,
        default=60.0,
        metavar="S",
        help="seconds to wait for sites (default: 60)",
    )
    _settings_option(parser)


def _settings_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--run-config",
        metavar="KEY=VALUE",
        action="append",
        dest="settings",
        default=[],
        help="entry of the run config to change",
    )


def check(args: argparse.Namespace, console: Console) -> None:
    """Ask the sites at ADDRESS whether they would answer the run of the app in DIR.

    Sites compare the request with their policies and budgets. No row is used and
    nothing is paid. Also states what so many sites, rows and eps will give.
    """
    from skfedcal.cli.flower.doctor import check_run, check_sites
    from skfedcal.cli.flower.project import changed_config, load_server
    from skfedcal.federation import connect

    config, operator = {}, None
    if args.dir is not None:
        config = changed_config(args.dir, args.settings)
        operator = load_server(args.dir).operator(config)
    names = [n.strip() for n in str(config.get("sites", "")).split(",") if n.strip()]
    with connect(
        args.address,
        root_certificates=args.ca,
        secret=args.secret,
        insecure=args.ca is None,
        sites=names or None,
        min_sites=int(config.get("min-nodes", 1)),
        n_rows=config.get("n-rows") or None,
        operator=operator,
        wait=args.wait,
        app=args.dir,
    ) as sites:
        lines = list(check_sites(sites))
        if args.dir is not None:
            lines += check_run(sites, args.dir, config)
    _show(lines, console)


def _trial_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", metavar="DIR", help="an app")
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="*",
        default=[],
        help=".npz file of each site, three or more (default: made-up data)",
    )
    _settings_option(parser)
    parser.add_argument(
        "-o", "--output", metavar="PATH", default="", help="keep the result as JSON"
    )
    parser.add_argument(
        "--supernodes",
        action="store_true",
        default=False,
        help="start stock SuperNodes, which run client.py, and `flwr run`: minutes",
    )


def trial(args: argparse.Namespace, console: Console) -> None:
    """Run an app on this machine: a SuperLink, and a live site for each FILE.

    Every site has its own process, key, ledger and file. Without FILE three sites have
    made-up data. Nothing is left running.
    """
    from skfedcal.cli.flower.doctor import check_app, check_run_config
    from skfedcal.cli.flower.project import changed_config
    from skfedcal.cli.flower.trial import (
        N_SITES,
        announced_rows,
        run_stock_trial,
        run_trial,
        toy_data,
    )

    config = changed_config(args.dir, args.settings)
    for line in (*check_app(args.dir), *check_run_config(config)):
        if line.verdict == "fail":
            raise ValueError(f"{args.dir}: {line.what}: {line.text}")
    with tempfile.TemporaryDirectory(prefix="skfedcal-") as name:
        folder = Path(name)
        data = {Path(file).stem: Path(file) for file in args.files}
        if not data:
            data = toy_data(folder, config)
        if len(data) < N_SITES:
            raise UsageError(f"pass files of {N_SITES} sites or more, each of its own.")
        out = Path(args.output).resolve() if args.output else folder / "result.json"
        kind, time = "sites", "half a minute"
        if args.supernodes:
            kind, time = "SuperNodes", "a few minutes"
        console.progress(
            f"starting a SuperLink and {len(data)} {kind}: takes {time}, Ctrl-C ends "
            "them all"
        )
        rows = announced_rows(config, data)
        if args.supernodes:
            settings = [*args.settings, *(f"{key}={rows[key]}" for key in rows)]
            text = run_stock_trial(args.dir, data, folder, out, settings)
        else:
            text = run_trial(args.dir, data, folder, out, config | rows)
    console.result(text, {"sites": list(data), "text": text, "output": args.output})


FLOWER = Command(
    name="flower",
    summary="run over sites that keep their data: init, keys, doctor, check, try",
    description=DESCRIPTION,
    examples=EXAMPLES,
    add_options=add_options,
    run=run,
)

SITE_DESCRIPTION = """\
Be a site of a federation: connect to the SuperLink of the consortium, and answer
requests as SITE.toml allows, until this process is ended.

The site is a node of Flower by itself. It holds rows, policy, roster and ledger in
memory, fetches and runs no code of the operator, and answers messages of skfedcal only.
It connects again after failures. Each request gives one line of JSON on stdout, with
time, run, method, eps charged and outcome. Everything else is logged on stderr.

SIGHUP reads SITE.toml, rows, roster and ledger again. SIGTERM ends the site after the
message under way; the exit code is 3 if rows did not fit a request and counted as zero,
which only this process knows.
"""

SITE_EXAMPLES = """\
examples:
  skfedcal flower doctor --site site.toml
  skfedcal site site.toml >> requests.jsonl
"""


def add_site_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``skfedcal site``."""
    parser.add_argument("file", metavar="SITE.toml", help="configuration of the site")


def run_site(args: argparse.Namespace, console: Console) -> int:
    """Serve until a signal comes."""
    from skfedcal.federation.flower_node import check_version
    from skfedcal.federation.live import LiveSite, Stop, fleet_node, serve

    check_version()
    logging.basicConfig(
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(message)s",
        level=logging.WARNING,
    )
    level = logging.WARNING if console.quiet else logging.INFO
    logging.getLogger("skfedcal").setLevel(level)
    stop = Stop()
    stop.catch_signals()
    site = LiveSite(args.file, write=lambda line: print(line, flush=True))
    fleet_node(site.config).close()  # wrong entries are errors now, not later
    console.progress(f"{site.name} answers at {site.config['flower']}")
    serve(site, lambda: fleet_node(site.config), stop)
    if not site.n_zeros:
        return 0
    console.warning(
        f"{site.n_zeros} answers were given in which rows of this site counted as "
        "zero; the lines on stdout and the log say why."
    )
    return EXIT_ZEROS


SITE = Command(
    name="site",
    summary="be a site of a federation that answers requests",
    description=SITE_DESCRIPTION,
    examples=SITE_EXAMPLES,
    add_options=add_site_options,
    run=run_site,
)
