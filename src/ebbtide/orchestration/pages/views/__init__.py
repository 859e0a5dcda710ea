"""The data of each page, as plain types that its template shows."""
