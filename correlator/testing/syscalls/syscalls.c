/* Interposes the system calls by which a process changes files, for correlator.testing.syscalls.
 *
 * While the library is not armed, it passes every call on. While it is armed, a call on a file below the watched
 * directory takes a lock, may be struck by the fault, takes place, and is recorded, all before the next call begins. So
 * the trace has the calls in the order in which they changed the disk. The library asks /proc at each call which file a
 * descriptor stands for, so it need not keep track of opens and closes. A forked child begins unarmed. If the trace
 * cannot be written, the process is ended, since no call may be missing in the trace.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { CREATE = 1, WRITE, TRUNCATE, FSYNC, FDATASYNC, RENAME, UNLINK, MARK, STRUCK };

struct header {
    uint32_t kind, path_size;
    int64_t offset;
    uint64_t size;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static volatile int armed;
static char directory[PATH_MAX];
static size_t directory_size;
static int trace = -1;
static long counted, struck;
static struct {
    char action[16], suffix[NAME_MAX + 1];
    long at, times, at_byte;
    unsigned long kinds;
} fault;
static long bytes;

/* The next definition of a function: in the C library, or in another preloaded library. */
#define NEXT(name) \
    static __typeof__(name) *next; \
    if (!next) next = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static void record(enum kind kind, const char *path, int64_t offset, const void *content, size_t size) {
    struct header header = {kind, (uint32_t)strlen(path), offset, size};
    struct iovec parts[] = {
        {&header, sizeof header}, {(void *)path, header.path_size}, {(void *)content, size}};
    size_t all = sizeof header + header.path_size + size;
    int saved = errno;
    if (trace < 0) return;
    if (writev(trace, parts, 3) != (ssize_t)all) {
        dprintf(2, "correlator: the trace of system calls cannot be written: %s\n", strerror(errno));
        abort();
    }
    errno = saved;
}

/* The name below the watched directory, "" for the directory itself, NULL for any other path. */
static const char *below(const char *path) {
    if (strncmp(path, directory, directory_size)) return NULL;
    if (!path[directory_size]) return "";
    return path[directory_size] == '/' ? path + directory_size + 1 : NULL;
}

static const char *name_of_descriptor(int descriptor, char *buffer) {
    char link[64];
    struct stat found;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t size = readlink(link, buffer, PATH_MAX - 1);
    if (size < 0) return NULL;
    buffer[size] = 0;
    const char *name = below(buffer);
    if (name && !fstat(descriptor, &found) && !found.st_nlink) return NULL; /* removed while it is open */
    return name;
}

static const char *name_of_path(const char *path, char *buffer) {
    char copy[PATH_MAX];
    size_t size = strlen(path);
    if (!size || size >= PATH_MAX) return NULL;
    memcpy(copy, path, size + 1);
    char *slash = strrchr(copy, '/');
    const char *last = slash ? slash + 1 : copy;
    if (slash && slash != copy) *slash = 0;
    if (!realpath(slash ? (slash == copy ? "/" : copy) : ".", buffer)) return NULL;
    size = strlen(buffer);
    if (size + strlen(last) + 2 > PATH_MAX) return NULL;
    snprintf(buffer + size, PATH_MAX - size, "/%s", last);
    return below(buffer);
}

/* A watched call begins. Other watched calls wait until it calls `leave`. */
static const char *enter(const char *name) {
    if (name) pthread_mutex_lock(&lock);
    return name;
}

static void leave(void) {
    pthread_mutex_unlock(&lock);
}

static int counts(enum kind kind, const char *name) {
    size_t size = strlen(name), suffix = strlen(fault.suffix);
    if (!(fault.kinds & 1UL << kind) || size < suffix) return 0;
    return !strcmp(name + size - suffix, fault.suffix);
}

/* Whether the fault strikes a call that counts. If a write would exceed the limit `at_byte`, `size` is reduced. */
static int strikes(enum kind kind, size_t *size) {
    if (fault.at_byte && kind == WRITE && bytes < fault.at_byte) {
        if ((long)*size > fault.at_byte - bytes) *size = (size_t)(fault.at_byte - bytes);
        bytes += (long)*size;
        return 0;
    }
    if (fault.at_byte ? bytes < fault.at_byte : counted < fault.at) return 0;
    return !fault.times || struck < fault.times;
}

/* Let the fault act on a call. Returns 0, or the error with which the call fails; may shorten a write. */
static int judge(enum kind kind, const char *name, size_t *size) {
    if (!counts(kind, name)) return 0;
    counted++;
    if (!fault.action[0] || !strikes(kind, size)) return 0;
    if (!strcmp(fault.action, "short") && (kind != WRITE || *size < 2)) return 0;
    struck++;
    record(STRUCK, name, kind, "", 0);
    if (!strcmp(fault.action, "short")) {
        *size /= 2;
        return 0;
    }
    if (!strcmp(fault.action, "kill")) {
        kill(getpid(), SIGKILL);
        for (;;) pause();
    }
    return strcmp(fault.action, "eio") ? ENOSPC : EIO;
}

/* The rest of a watched call up to `leave`: `call` takes place unless it is struck, and is recorded if it succeeds. */
#define WATCHED(kind, name, size, call, recorded) \
    do { \
        __typeof__(call) result = -1; \
        int error = judge(kind, name, size); \
        if (error) errno = error; \
        else result = call; \
        if (result >= 0) recorded; \
        leave(); \
        return result; \
    } while (0)

static ssize_t watched_write(
    int descriptor, const void *content, size_t size, ssize_t (*next)(int, const void *, size_t), const char *name) {
    WATCHED(WRITE, name, &size, next(descriptor, content, size),
        record(WRITE, name, lseek(descriptor, 0, SEEK_CUR) - result, content, (size_t)result));
}

ssize_t write(int descriptor, const void *content, size_t size) {
    NEXT(write);
    char buffer[PATH_MAX];
    const char *name = armed ? enter(name_of_descriptor(descriptor, buffer)) : NULL;
    return name ? watched_write(descriptor, content, size, next, name) : next(descriptor, content, size);
}

static ssize_t watched_pwrite(int descriptor, const void *content, size_t size, off_t offset,
    ssize_t (*next)(int, const void *, size_t, off_t), const char *name) {
    WATCHED(WRITE, name, &size, next(descriptor, content, size, offset),
        record(WRITE, name, offset, content, (size_t)result));
}

#define PWRITE(function, offset_type) \
    ssize_t function(int descriptor, const void *content, size_t size, offset_type offset) { \
        NEXT(function); \
        char buffer[PATH_MAX]; \
        const char *name = armed ? enter(name_of_descriptor(descriptor, buffer)) : NULL; \
        if (!name) return next(descriptor, content, size, offset); \
        return watched_pwrite(descriptor, content, size, offset, next, name); \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

static int watched_ftruncate(int descriptor, off_t size, int (*next)(int, off_t), const char *name) {
    size_t none = 0;
    WATCHED(TRUNCATE, name, &none, next(descriptor, size), record(TRUNCATE, name, size, "", 0));
}

#define FTRUNCATE(function, offset_type) \
    int function(int descriptor, offset_type size) { \
        NEXT(function); \
        char buffer[PATH_MAX]; \
        const char *name = armed ? enter(name_of_descriptor(descriptor, buffer)) : NULL; \
        return name ? watched_ftruncate(descriptor, size, next, name) : next(descriptor, size); \
    }
FTRUNCATE(ftruncate, off_t)
FTRUNCATE(ftruncate64, off64_t)

static int watched_sync(enum kind kind, int descriptor, int (*next)(int), const char *name) {
    size_t none = 0;
    WATCHED(kind, name, &none, next(descriptor), record(kind, name, 0, "", 0));
}

#define SYNC(function, kind) \
    int function(int descriptor) { \
        NEXT(function); \
        char buffer[PATH_MAX]; \
        const char *name = armed ? enter(name_of_descriptor(descriptor, buffer)) : NULL; \
        return name ? watched_sync(kind, descriptor, next, name) : next(descriptor); \
    }
SYNC(fsync, FSYNC)
SYNC(fdatasync, FDATASYNC)

static int watched_rename(const char *from, const char *to, int (*next)(const char *, const char *), const char *name) {
    char buffer[PATH_MAX];
    const char *target = name_of_path(to, buffer);
    size_t none = 0;
    WATCHED(RENAME, name, &none, next(from, to),
        target ? record(RENAME, name, 0, target, strlen(target)) : record(UNLINK, name, 0, "", 0));
}

int rename(const char *from, const char *to) {
    NEXT(rename);
    char buffer[PATH_MAX];
    const char *name = armed ? enter(name_of_path(from, buffer)) : NULL;
    return name ? watched_rename(from, to, next, name) : next(from, to);
}

static int watched_unlink(const char *path, int (*next)(const char *), const char *name) {
    size_t none = 0;
    WATCHED(UNLINK, name, &none, next(path), record(UNLINK, name, 0, "", 0));
}

int unlink(const char *path) {
    NEXT(unlink);
    char buffer[PATH_MAX];
    const char *name = armed ? enter(name_of_path(path, buffer)) : NULL;
    return name ? watched_unlink(path, next, name) : next(path);
}

static int watched_open(
    const char *path, int flags, mode_t mode, int (*next)(const char *, int, ...), const char *name) {
    struct stat found;
    size_t none = 0;
    int there = !stat(path, &found);
    if (there && (!(flags & O_TRUNC) || (flags & (O_CREAT | O_EXCL)) == (O_CREAT | O_EXCL))) {
        leave();
        return next(path, flags, mode);
    }
    enum kind kind = there ? TRUNCATE : CREATE;
    WATCHED(kind, name, &none, next(path, flags, mode), record(kind, name, 0, "", 0));
}

#define OPEN(function) \
    int function(const char *path, int flags, ...) { \
        NEXT(function); \
        char buffer[PATH_MAX]; \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        const char *name = armed && flags & (O_CREAT | O_TRUNC) ? enter(name_of_path(path, buffer)) : NULL; \
        return name ? watched_open(path, flags, mode, next, name) : next(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

/* The functions that Python calls. */

static int begin(char *order) {
    char *rest = order;
    const char *where = strsep(&rest, "\n"), *file = strsep(&rest, "\n"), *what = strsep(&rest, "\n");
    if (!where || !file || !what || !*where || strlen(where) >= PATH_MAX) return EINVAL;
    memset(&fault, 0, sizeof fault);
    fault.kinds = ~0UL;
    if (*what && sscanf(what, "%15s %ld %ld %ld %lu %255s", fault.action, &fault.at, &fault.times, &fault.at_byte,
                     &fault.kinds, fault.suffix) < 5)
        return EINVAL;
    if (trace >= 0) close(trace);
    trace = *file ? open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    if (*file && trace < 0) return errno;
    directory_size = strlen(where);
    memcpy(directory, where, directory_size + 1);
    counted = struck = bytes = 0;
    armed = 1;
    return 0;
}

long correlator_syscalls_disarm(void) {
    armed = 0;
    return 0;
}

long correlator_syscalls_arm(const char *order) {
    char *copy = strdup(order);
    if (!copy) return ENOMEM;
    armed = 0;
    pthread_mutex_lock(&lock);
    int failed = begin(copy);
    pthread_mutex_unlock(&lock);
    free(copy);
    return failed;
}

long correlator_syscalls_mark(const char *content, size_t size) {
    if (!armed || trace < 0) return EINVAL;
    pthread_mutex_lock(&lock);
    record(MARK, "", 0, content, size);
    pthread_mutex_unlock(&lock);
    return 0;
}

long correlator_syscalls_calls(void) {
    return counted;
}

long correlator_syscalls_struck(void) {
    return struck;
}

static void in_child(void) {
    pthread_mutex_init(&lock, NULL);
    armed = 0;
}

__attribute__((constructor)) static void start(void) {
    const char *order = getenv("CORRELATOR_SYSCALLS");
    pthread_atfork(NULL, NULL, in_child);
    if (!order) return;
    int failed = (int)correlator_syscalls_arm(order);
    unsetenv("CORRELATOR_SYSCALLS"); /* the programs that this program starts are not watched */
    if (failed) {
        dprintf(2, "correlator: system calls cannot be watched: %s\n", strerror(failed));
        _exit(70);
    }
}
