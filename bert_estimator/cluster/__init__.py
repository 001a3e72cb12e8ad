"""Several hosts: who they are, how they meet, and how they agree."""
