"""Client app: runs at a site, and answers as the configuration of the site allows.

It reads the rows from the file that ``data-path`` of the configuration names. For rows
from elsewhere pass ``make_client_app(load)``, where ``load(config)`` gives
``skfedcal.federation.SiteRows(scores, labels)``.
"""

from skfedcal.federation import make_client_app

app = make_client_app()
