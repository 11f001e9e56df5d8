"""What ``skfedcal flower`` does: an app, keys, checks and a trial on one machine."""
