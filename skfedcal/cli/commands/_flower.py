"""``skfedcal flower``: from one machine to many."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from skfedcal.cli._command import Command, Console, UsageError, add_common_options

if TYPE_CHECKING:
    from skfedcal.cli.flower.doctor import Line

DESCRIPTION = """\
Run a calibration or an evaluation over sites that keep their data, on Flower.

  init    write an app
  keys    make keys of sites and a roster
  doctor  check an app, this machine and the configuration of a site
  try     run an app on this machine, as it would run on many
"""

EXAMPLES = """\
examples:
  skfedcal flower init calibration
  skfedcal flower try calibration
  skfedcal flower keys hospital-a --dir keys
  skfedcal flower doctor calibration --roster keys/roster.json
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the commands below ``skfedcal flower``."""
    parser.set_defaults(action=None)
    actions = parser.add_subparsers(title="commands", metavar="COMMAND")
    for action, summary, options in (
        (init, "write an app", _init_options),
        (keys, "make keys of sites and a roster", _keys_options),
        (doctor, "check an app and its surroundings", _doctor_options),
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
        raise UsageError("name a command: init, keys, doctor or try.")
    args.action(args, console)


def _init_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", metavar="DIR", help="folder to write")


def init(args: argparse.Namespace, console: Console) -> None:
    """Write an app: pyproject.toml with the run config, client.py and server.py."""
    from skfedcal.cli.flower.project import write_app

    paths = [str(path) for path in write_app(args.dir)]
    text = "\n".join(f"written {path}" for path in paths)
    console.result(text, {"written": paths})
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


def keys(args: argparse.Namespace, console: Console) -> None:
    """Make a key for each SITE, and put all public halves into DIR/roster.json.

    A key stays at its site. Sites exchange their rosters, join them, and compare the
    fingerprint. With the key of an operator in the roster, sites answer only what the
    operator signed.
    """
    from skfedcal.cli.flower.project import (
        NO_OPERATOR,
        OPERATOR,
        ROSTER,
        fingerprint,
        make_keys,
    )

    if not args.sites and not args.join and not args.operator:
        raise UsageError("name a site, or pass --operator or --join ROSTER.")
    paths, roster = make_keys(args.sites, args.join, args.dir, operator=args.operator)
    data = {
        "keys": [str(path) for path in paths],
        "roster": str(Path(args.dir, ROSTER)),
        "sites": sorted(roster.sites),
        "operator": None if roster.operator is None else roster.operator.hex(),
        "fingerprint": fingerprint(roster),
    }
    places = {OPERATOR: "with the operator"}
    lines = [
        f"written {path}: keep it {places.get(path.name, 'at the site')}"
        for path in paths
    ]
    lines += [
        f"written {data['roster']}: {len(roster.sites)} sites; send it to every site",
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
    lines = list(_findings(args))
    data = {"checks": [line._asdict() for line in lines]}
    width = max(len(line.what) for line in lines)
    text = "\n".join(f"{v:<4}  {what:<{width}}  {t}" for v, what, t in lines)
    console.result(text, data)
    failed = sum(line.verdict == "fail" for line in lines)
    if failed:
        raise ValueError(f"{failed} of {len(lines)} checks failed.")


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


def _trial_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", metavar="DIR", help="an app")
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="*",
        default=[],
        help=".npz file of each site, three or more (default: made-up data)",
    )
    parser.add_argument(
        "--run-config",
        metavar="KEY=VALUE",
        action="append",
        dest="settings",
        default=[],
        help="entry of the run config to change",
    )
    parser.add_argument(
        "-o", "--output", metavar="PATH", default="", help="keep the result as JSON"
    )


def trial(args: argparse.Namespace, console: Console) -> None:
    """Run an app on this machine: a SuperLink, and a SuperNode for each FILE.

    Every site has its own process, key and file. Without FILE three sites have
    made-up data. Nothing is left running.
    """
    from skfedcal.cli.flower.doctor import check_app, check_run_config
    from skfedcal.cli.flower.project import changed_config
    from skfedcal.cli.flower.trial import (
        N_SITES,
        announced_rows,
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
        console.progress(
            f"starting a SuperLink and {len(data)} SuperNodes: takes a few minutes, "
            "Ctrl-C ends them all"
        )
        settings = [*args.settings, *announced_rows(config, data)]
        text = run_trial(args.dir, data, folder, out, settings)
    console.result(text, {"sites": list(data), "text": text, "output": args.output})


FLOWER = Command(
    name="flower",
    summary="run over sites that keep their data: init, keys, doctor, try",
    description=DESCRIPTION,
    examples=EXAMPLES,
    add_options=add_options,
    run=run,
)
