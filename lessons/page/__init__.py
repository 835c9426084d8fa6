# Where the site is published, with "/" at its end; the only place that says so. Empty: nowhere yet.
ADDRESS = ""
# The address of the repository; while it is empty, no page links to it.
REPOSITORY = ""
