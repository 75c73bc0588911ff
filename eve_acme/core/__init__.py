"""The mathematics: pure functions in the notation of the paper. Imports neither Acme nor Reverb."""
