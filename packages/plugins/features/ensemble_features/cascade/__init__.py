"""Members one after the other, until the called members are sure together."""
