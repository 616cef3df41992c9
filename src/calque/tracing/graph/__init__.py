"""What traced graphs contain besides calls."""
