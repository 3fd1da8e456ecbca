"""Whether a language model has one answer to one prompt, whatever shares its batch: in process, and by a server."""
