"""What users see: tables, messages, reports."""
