"""The agents that come with the product. They stand alone: they import nothing else of it."""
