"""What a policy is worth on questions."""
