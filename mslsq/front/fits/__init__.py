"""What a curve fit knows afterwards: statistics, predictions, intervals, reports."""
