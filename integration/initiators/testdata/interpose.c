// For iscsi-test-cu (LD_PRELOAD): libiscsi 1.19 frees a context whose iSER connection's thread still uses it,
// and the login that follows fails or crashes, whatever the target. Contexts stay.
struct iscsi_context;
int iscsi_destroy_context(struct iscsi_context *iscsi)
{
	(void)iscsi;
	return 0;
}
