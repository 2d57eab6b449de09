"""The distribution `blocklife-suite`: how it is built from the files of `blocklife/`, and its front."""
