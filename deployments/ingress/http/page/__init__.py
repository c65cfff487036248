"""What people see of the service at `/`: a page, and the figures it draws."""
