package state

func hostIdentity() Identity {
	return Identity{
		MachineID: firstID("/etc/machine-id", "/var/lib/dbus/machine-id"),
		BootID:    firstID("/proc/sys/kernel/random/boot_id"),
	}
}
