"""Where the project is published: an empty address means nowhere yet, and nothing links there."""

ADDRESS = ""  # of the lessons as a site, with "/" at its end
REPOSITORY = ""
