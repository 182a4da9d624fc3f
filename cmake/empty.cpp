// The source of a part that has only headers.
