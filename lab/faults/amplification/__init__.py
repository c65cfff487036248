"""Small requests that cost much: generated for every route and method, and measured by what others notice of them."""
