package nbd_test

const serveEnv = "NBD_TEST_SERVE"

func serveDisk() {}
