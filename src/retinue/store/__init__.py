"""Storage: journals and memories in SQLite, reports and run locks in files."""
