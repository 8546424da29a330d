"""The flat template: neighbouring elements by neighbouring threads."""
