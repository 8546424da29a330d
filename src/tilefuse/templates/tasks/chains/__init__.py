"""The template of chains in groups: a producer, a product and a user whose tiles along one axis depend on each other, as tasks."""
