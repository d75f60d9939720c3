package folder

import "golang.org/x/sys/unix"

func hasACL(path string) bool {
	size, err := unix.Getxattr(path, "system.posix_acl_access", nil)
	return err == nil && size > 0
}
