"""All code that uses private names of Ray, and the fallbacks for a Ray without them."""
