"""What trainings have left in their folders, as tables and as one page to read and to send on."""
