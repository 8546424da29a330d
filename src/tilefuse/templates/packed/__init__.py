"""The packed template: independent parts of unlike size in one kernel."""
