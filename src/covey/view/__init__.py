"""`covey view`: every run of a folder in the browser, also while it trains; and the list of runs that `covey runs` shows."""
