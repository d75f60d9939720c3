package sqlitefile

import (
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// SQLite maps the index of its log into memory. On a file system that is frozen
// (fsfreeze, as backups of virtual machines do it) the first store to a page of the
// index is a page fault that lasts until the thaw. Go's runtime takes a thread in a
// page fault for one that runs, so the next garbage collection would stop all other
// threads until then, and no ID would be made. The runtime knows a thread in a system
// call for what it is.
//
// So SQLite makes a system call that a frozen file system holds up before it stores
// anything in the index: when it takes a lock of the index, with which every
// transaction begins, and after it synced a file, which is what a commit spends its
// time on. The functions of SQLite's own that do these two things are replaced.

// awaitThaw returns once the file system of the file takes changes. It writes
// nothing, and so changes no time of the file either.
func awaitThaw(fd int32) { _, _ = unix.Pwrite(int(fd), nil, 0) }

type (
	openFunc    = func(tls *libc.TLS, vfs, name, file uintptr, flags int32, outFlags uintptr) int32
	syncFunc    = func(tls *libc.TLS, file uintptr, flags int32) int32
	shmLockFunc = func(tls *libc.TLS, file uintptr, offset, n, flags int32) int32
)

// SQLite's own functions. The last two are set before the first file is used.
var (
	sqliteOpen    openFunc
	sqliteSync    syncFunc
	sqliteShmLock shmLockFunc
)

// replaced are the tables of functions that have been changed. SQLite has one for
// each way to lock files.
var replaced struct {
	sync.Mutex
	tables map[uintptr]bool
}

func init() {
	replaced.tables = map[uintptr]bool{}
	vfs := at[sqlite3.Tsqlite3_vfs](sqlite3.Xsqlite3_vfs_find(libc.NewTLS(), 0))
	sqliteOpen = function[openFunc](vfs.FxOpen)
	vfs.FxOpen = address(openFunc(openFile))
}

func openFile(tls *libc.TLS, vfs, name, file uintptr, flags int32, outFlags uintptr) int32 {
	code := sqliteOpen(tls, vfs, name, file, flags, outFlags)
	if code != sqlite3.SQLITE_OK {
		return code
	}
	replaced.Lock()
	defer replaced.Unlock()
	table := at[sqlite3.Tsqlite3_file](file).FpMethods
	if replaced.tables[table] {
		return code
	}
	replaced.tables[table] = true
	methods := at[sqlite3.Tsqlite3_io_methods](table)
	if sqliteSync == nil { // every table has the same two
		sqliteSync, sqliteShmLock = function[syncFunc](methods.FxSync), function[shmLockFunc](methods.FxShmLock)
	}
	methods.FxSync, methods.FxShmLock = address(syncFunc(syncFile)), address(shmLockFunc(lockIndex))
	return code
}

func syncFile(tls *libc.TLS, file uintptr, flags int32) int32 {
	code := sqliteSync(tls, file, flags)
	awaitThaw(at[sqlite3.TunixFile](file).Fh)
	return code
}

func lockIndex(tls *libc.TLS, file uintptr, offset, n, flags int32) int32 {
	if flags&sqlite3.SQLITE_SHM_LOCK != 0 {
		awaitThaw(at[sqlite3.TunixFile](file).Fh)
	}
	return sqliteShmLock(tls, file, offset, n, flags)
}

// at is what lies at an address of SQLite's.
func at[T any](address uintptr) *T { return *(**T)(unsafe.Pointer(&address)) }

// function and address turn SQLite's pointers to functions into Go's and back: both
// are the address of a closure. That of a function of a package never moves.
func function[F any](address uintptr) F { return *(*F)(unsafe.Pointer(&address)) }

func address[F any](f F) uintptr { return *(*uintptr)(unsafe.Pointer(&f)) }
