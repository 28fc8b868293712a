"""What predictions are worth: errors of measured cells against bars, against simpler models, and part by part."""
