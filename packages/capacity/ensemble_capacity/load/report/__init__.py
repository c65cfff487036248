"""What a load came to, for people and programs: a table, JSON, CSV and a page."""
