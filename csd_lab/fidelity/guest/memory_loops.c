/*
 * Loops over memory: reading, writing and copying whole lines, and dependent reads at random. Each runs twice, the second
 * time between two marks, the second of which has the loop's number. They run on a bare core without a system, where a
 * mark is `movz xzr, #0xC5D0 + n`, or with -DON_LINUX as a process, where a mark reads the clock and writes a line,
 * number and nanoseconds since the mark before. The addresses are the same: the bare machine's memory begins at 1 GiB and
 * has no memory management; Linux is asked for these places, in pages of the least size.
 */
typedef unsigned long u64;

#define VECTORS "v0", "v1", "v2", "v3", "memory"

enum { START = 15, BEGIN = 0, READ = 1, WRITE = 2, COPY = 3, RANDOM_READ = 4, CLOCK = 5, STOP = 14 };

static char *const SOURCE = (char *)0x48000000, *const TARGET = (char *)0x4a000000;

#ifdef ON_LINUX
#define MARK(n) mark(n)

enum { MADVISE = 233, MMAP = 222, WRITE_OUT = 64, EXIT = 93, CLOCK_GETTIME = 113, MONOTONIC_RAW = 4 };
/* Read and write; private, anonymous, at the place, never over another mapping (MAP_FIXED_NOREPLACE). */
enum { PROTECTION = 3, MAPPING = 0x100022, NO_HUGE_PAGES = 15, PAGE_BYTES = 4096 };

static long call(long number, long a, long b, long c, long d)
{
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d, x4 __asm__("x4") = -1, x5 __asm__("x5") = 0;
    __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return x0;
}

static void quit(int code) { call(EXIT, code, 0, 0, 0); }

static u64 nanoseconds(void)
{
    long time[2];
    call(CLOCK_GETTIME, MONOTONIC_RAW, (long)time, 0, 0);
    return (u64)time[0] * 1000000000 + (u64)time[1];
}

/* Write a number and what follows it. */
static void write_number(u64 number, char after)
{
    char text[24], *at = text + sizeof text;
    *--at = after;
    do *--at = (char)('0' + number % 10); while (number /= 10);
    long bytes = text + sizeof text - at;
    if (call(WRITE_OUT, 1, (long)at, bytes, 0) != bytes)
        quit(3);
}

static u64 before;

static void mark(int number)
{
    u64 now = nanoseconds();
    if (number > BEGIN && number < STOP) {
        write_number((u64)number, ' ');
        write_number(now - before, '\n');
    }
    before = nanoseconds();
}

/* Take memory at a place, and write to each page: those never written to would be one page. */
static void take(char *place, u64 bytes)
{
    if (call(MMAP, (long)place, (long)bytes, PROTECTION, MAPPING) != (long)place)
        quit(2);
    call(MADVISE, (long)place, (long)bytes, NO_HUGE_PAGES, 0);
    for (u64 at = 0; at < bytes; at += PAGE_BYTES)
        *(volatile char *)(place + at) = 0; /* a page of its own, of zeros as on the bare machine */
}

/* Additions that wait for each other, one a cycle: what they take tells the clock. */
static void add_in_turn(u64 thousands)
{
    for (u64 sum = 0, one = 1; thousands--;)
        __asm__ volatile(".rept 1000\n add %0, %0, %1\n .endr" : "+r"(sum) : "r"(one));
}
#else
#define MARK(n) __asm__ volatile("movz xzr, %0" ::"i"(0xC5D0 + (n)) : "memory")
#endif

static void read_lines(const char *from, u64 bytes)
{
    for (const char *end = from + bytes; from < end; from += 64)
        __asm__ volatile("ldp q0, q1, [%0]\n ldp q2, q3, [%0, #32]" ::"r"(from) : VECTORS);
}

static void write_lines(char *to, u64 bytes)
{
    for (char *end = to + bytes; to < end; to += 64)
        __asm__ volatile("stp q0, q1, [%0]\n stp q2, q3, [%0, #32]" ::"r"(to) : VECTORS);
}

static void copy_lines(const char *from, char *to, u64 bytes)
{
    for (const char *end = from + bytes; from < end; from += 64, to += 64)
        __asm__ volatile("ldp q0, q1, [%0]\n ldp q2, q3, [%0, #32]\n stp q0, q1, [%1]\n stp q2, q3, [%1, #32]"
                         ::"r"(from), "r"(to) : VECTORS);
}

/* Each place is drawn from what was read before: a linear congruential generator (that of ISO C's example), thrice. */
static unsigned draw(unsigned *state) { return *state = *state * 1103515245u + 12345u; }

static void read_at_random(u64 bytes, u64 times)
{
    volatile const unsigned char *from = (volatile const unsigned char *)SOURCE;
    unsigned state = 1;
    while (times--) {
        unsigned place = draw(&state) >> 16 & 0xff;
        place |= draw(&state) >> 8 & 0xff00;
        place |= draw(&state) & 0x7fff0000;
        state |= from[place & (bytes - 1)];
    }
}

/* Do something twice, the second time between two marks. */
#define TWICE(does, mark) do { does; MARK(BEGIN); does; MARK(mark); } while (0)

static void measure(void)
{
    MARK(START);
#ifdef ON_LINUX
    TWICE(add_in_turn(ADDITIONS / 1000), CLOCK);
#endif
    TWICE(read_lines(SOURCE, BYTES), READ);
    TWICE(write_lines(TARGET, BYTES), WRITE);
    TWICE(copy_lines(SOURCE, TARGET, BYTES), COPY);
    for (u64 kibibytes = LEAST_KIBIBYTES; kibibytes <= MOST_KIBIBYTES; kibibytes *= 2)
        TWICE(read_at_random(kibibytes << 10, TIMES), RANDOM_READ);
    MARK(STOP);
}

#ifdef ON_LINUX
void begin(void)
{
    take(SOURCE, MOST_KIBIBYTES << 10 > BYTES ? MOST_KIBIBYTES << 10 : BYTES);
    take(TARGET, BYTES);
    measure();
    quit(0);
}

__asm__(".globl _start\n _start: b begin\n");
#else
/* Give the core its vector registers and a stack, and power the machine off at the end. */
void begin(void)
{
    measure();
    __asm__ volatile("movz w0, #8\n movk w0, #0x8400, lsl #16\n hvc #0");
}

__asm__(".globl _start\n _start: mov x0, #0x300000\n msr cpacr_el1, x0\n isb\n mov x0, #0x47000000\n mov sp, x0\n"
        "b begin\n");
#endif
