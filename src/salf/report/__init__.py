"""Results for people: tables in the terminal, pictures, and pages that need no network."""
