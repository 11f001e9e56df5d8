"""The subcommands, in the order of the help; a new one is a file and a line here."""

from skfedcal.cli.commands._audit import AUDIT
from skfedcal.cli.commands._comparison import COMPARE, REPORT
from skfedcal.cli.commands._demo import DEMO
from skfedcal.cli.commands._evaluate import EVALUATE
from skfedcal.cli.commands._fit import FIT
from skfedcal.cli.commands._flower import FLOWER, SITE
from skfedcal.cli.commands._info import INFO
from skfedcal.cli.commands._ledger import LEDGER, VERIFY
from skfedcal.cli.commands._monitor import MONITOR
from skfedcal.cli.commands._plan import PLAN
from skfedcal.cli.commands._predict import PREDICT
from skfedcal.cli.commands._reproduce import REPRODUCE

COMMANDS = (
    DEMO,
    PLAN,
    COMPARE,
    REPORT,
    REPRODUCE,
    FIT,
    PREDICT,
    EVALUATE,
    MONITOR,
    INFO,
    FLOWER,
    SITE,
    VERIFY,
    AUDIT,
    LEDGER,
)
