"""What a server can take: `ensemble load` measures it, `ensemble plan` predicts it, `ensemble tune` chooses by it."""
