// A preload library that makes one file operation of a process fail, or end the process.
//
// It counts the operations on paths below FAULT_UNDER, from 1. At operation FAULT_AT it does FAULT_DO:
//   fail        returns -1 with errno FAULT_ERRNO
//   fail-on     the same, for this operation and all later operations that can fail with FAULT_ERRNO
//   short       writes half of the bytes, as write(2) may
//   full        writes half of the bytes; later operations fail with ENOSPC: the disk is full
//   interrupt   returns -1 with EINTR, once
//   kill        ends the process by SIGKILL before the operation
//   kill-after  the same, after the operation
// FAULT_LOG names a log file with one line per operation: "OPERATION PATH", a tab, and a note. The note of a sync is the
// size of the file; the note of a rename is the old path.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum verdict { GO, FAIL, HALF, DIE_AFTER };

static atomic_long operation_count;
static const char *under, *action;
static long target;
static int error_number, log_file = -1;

__attribute__((constructor)) static void read_environment(void) {
    const char *text = getenv("FAULT_AT");
    under = getenv("FAULT_UNDER");
    action = getenv("FAULT_DO");
    target = text ? atol(text) : 0;
    error_number = (text = getenv("FAULT_ERRNO")) ? atoi(text) : ENOSPC;
    if ((text = getenv("FAULT_LOG")))
        log_file = syscall(SYS_openat, AT_FDCWD, text, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
}

static void die(void) {
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;) pause();
}

static int action_is(const char *name) { return action && !strcmp(action, name); }

// Whether an operation can fail with `error_number`: too many open files (EMFILE), or a full disk.
static int can_fail(const char *operation) {
    int opens = !strcmp(operation, "open") || !strcmp(operation, "read");
    if (error_number == EMFILE) return opens;
    return strcmp(operation, "read") && strcmp(operation, "unlink");
}

static enum verdict decide(const char *operation, const char *path, const char *note) {
    if (!under || strncmp(path, under, strlen(under))) return GO;
    long count = atomic_fetch_add(&operation_count, 1) + 1;
    if (log_file >= 0) {
        char line[4 * PATH_MAX + 32];
        int length = snprintf(line, sizeof line, "%s %s\t%s\n", operation, path, note);
        syscall(SYS_write, log_file, line, length);
    }
    if (!target || count < target) return GO;
    errno = error_number;
    if (action_is("full") && count == target) return HALF;
    if (action_is("fail-on") || action_is("full")) return can_fail(operation) ? FAIL : GO;
    if (count > target) return GO;
    if (action_is("fail")) return FAIL;
    if (action_is("short")) return HALF;
    if (action_is("interrupt")) {
        errno = EINTR;
        return FAIL;
    }
    if (action_is("kill")) die();
    if (action_is("kill-after")) return DIE_AFTER;
    return GO;
}

// The path of an open file; empty for a pipe or a socket.
static const char *path_of_file(int file, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    path[length < 0 ? 0 : length] = 0;
    return path;
}

// The path of `name` in the open folder `folder`.
static const char *path_below(int folder, const char *name, char *path) {
    char start[PATH_MAX];
    if (name[0] == '/') return name;
    if (folder == AT_FDCWD) {
        if (!getcwd(start, sizeof start)) return name;
    } else {
        path_of_file(folder, start);
    }
    snprintf(path, 2 * PATH_MAX, "%s/%s", start, name);
    return path;
}

// The function of the C library that a function here replaces.
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

// The size of an open file.
static const char *size_of(int file, char *text) {
    struct stat data;
    snprintf(text, 32, "%lld", fstat(file, &data) ? 0LL : (long long)data.st_size);
    return text;
}

// Makes `call` unless the verdict is a failure. HALF also fails, because the call cannot be halved.
#define GUARD(operation, path, note, call)               \
    char path_buffer[2 * PATH_MAX], note_buffer[2 * PATH_MAX];         \
    (void)path_buffer, (void)note_buffer;                              \
    enum verdict verdict = decide(operation, path, note); \
    if (verdict == FAIL || verdict == HALF) return -1;   \
    __typeof__(call) result = call;                      \
    if (verdict == DIE_AFTER) die();                     \
    return result

// The same for calls that write `size` bytes.
#define GUARD_WRITE(file, size, call)                    \
    char path_buffer[PATH_MAX];                                 \
    enum verdict verdict = decide("write", path_of_file(file, path_buffer), ""); \
    if (verdict == FAIL) return -1;                      \
    if (verdict == HALF && size > 1) size /= 2;          \
    ssize_t result = call;                               \
    if (verdict == DIE_AFTER) die();                     \
    return result

static const char *open_operation(int flags) { return flags & (O_WRONLY | O_RDWR | O_CREAT) ? "open" : "read"; }

#define MODE(flags)                                      \
    mode_t mode = 0;                                     \
    if (flags & (O_CREAT | O_TMPFILE)) {                 \
        va_list rest;                                    \
        va_start(rest, flags);                           \
        mode = va_arg(rest, mode_t);                     \
        va_end(rest);                                    \
    }

int open(const char *name, int flags, ...) {
    MODE(flags)
    GUARD(open_operation(flags), path_below(AT_FDCWD, name, path_buffer), "", REAL(open)(name, flags, mode));
}
int open64(const char *name, int flags, ...) {
    MODE(flags)
    GUARD(open_operation(flags), path_below(AT_FDCWD, name, path_buffer), "", REAL(open64)(name, flags, mode));
}
int openat(int folder, const char *name, int flags, ...) {
    MODE(flags)
    GUARD(open_operation(flags), path_below(folder, name, path_buffer), "", REAL(openat)(folder, name, flags, mode));
}
int openat64(int folder, const char *name, int flags, ...) {
    MODE(flags)
    GUARD(open_operation(flags), path_below(folder, name, path_buffer), "", REAL(openat64)(folder, name, flags, mode));
}

ssize_t write(int file, const void *bytes, size_t size) {
    GUARD_WRITE(file, size, REAL(write)(file, bytes, size));
}
ssize_t pwrite64(int file, const void *bytes, size_t size, off64_t from) {
    GUARD_WRITE(file, size, REAL(pwrite64)(file, bytes, size, from));
}
ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t size, unsigned flags) {
    GUARD_WRITE(out, size, REAL(copy_file_range)(in, from, out, to, size, flags));
}
ssize_t sendfile64(int out, int in, off64_t *from, size_t size) {
    GUARD_WRITE(out, size, REAL(sendfile64)(out, in, from, size));
}
ssize_t writev(int file, const struct iovec *parts, int count) {
    GUARD("write", path_of_file(file, path_buffer), "", REAL(writev)(file, parts, count));
}

int fsync(int file) { GUARD("fsync", path_of_file(file, path_buffer), size_of(file, note_buffer), REAL(fsync)(file)); }
int fdatasync(int file) { GUARD("fsync", path_of_file(file, path_buffer), size_of(file, note_buffer), REAL(fdatasync)(file)); }
int ftruncate64(int file, off64_t size) { GUARD("truncate", path_of_file(file, path_buffer), "", REAL(ftruncate64)(file, size)); }

int rename(const char *from, const char *to) {
    GUARD("rename", path_below(AT_FDCWD, to, path_buffer), path_below(AT_FDCWD, from, note_buffer), REAL(rename)(from, to));
}
int renameat(int from_folder, const char *from, int folder, const char *to) {
    GUARD("rename", path_below(folder, to, path_buffer), path_below(from_folder, from, note_buffer), REAL(renameat)(from_folder, from, folder, to));
}
int renameat2(int from_folder, const char *from, int folder, const char *to, unsigned flags) {
    GUARD("rename", path_below(folder, to, path_buffer), path_below(from_folder, from, note_buffer), REAL(renameat2)(from_folder, from, folder, to, flags));
}
int link(const char *from, const char *to) { GUARD("link", path_below(AT_FDCWD, to, path_buffer), "", REAL(link)(from, to)); }
int linkat(int from_folder, const char *from, int folder, const char *to, int flags) {
    GUARD("link", path_below(folder, to, path_buffer), "", REAL(linkat)(from_folder, from, folder, to, flags));
}
int symlink(const char *to, const char *name) { GUARD("link", path_below(AT_FDCWD, name, path_buffer), "", REAL(symlink)(to, name)); }
int mkdir(const char *name, mode_t mode) { GUARD("mkdir", path_below(AT_FDCWD, name, path_buffer), "", REAL(mkdir)(name, mode)); }
int mkdirat(int folder, const char *name, mode_t mode) {
    GUARD("mkdir", path_below(folder, name, path_buffer), "", REAL(mkdirat)(folder, name, mode));
}
int unlink(const char *name) { GUARD("unlink", path_below(AT_FDCWD, name, path_buffer), "", REAL(unlink)(name)); }
int unlinkat(int folder, const char *name, int flags) {
    GUARD("unlink", path_below(folder, name, path_buffer), "", REAL(unlinkat)(folder, name, flags));
}
int rmdir(const char *name) { GUARD("unlink", path_below(AT_FDCWD, name, path_buffer), "", REAL(rmdir)(name)); }
