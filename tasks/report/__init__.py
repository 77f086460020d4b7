"""Reports for people: tables in the terminal and one self-contained page, both from the views of schema report."""
