"""`covey view`: the runs of a folder in the browser, also while they train; and the list that `covey runs` prints."""
