/*
 * Loops over memory, run by a bare core without a system: reading, writing and copying whole lines, and dependent reads
 * at random. Each runs twice, the second time between two marks (`movz xzr, #0xC5D0 + n`), the second of which has the
 * loop's number. No memory management: addresses are those of the machine's memory, which begins at 1 GiB.
 */
typedef unsigned long u64;

#define MARK(n) __asm__ volatile("movz xzr, %0" ::"i"(0xC5D0 + (n)) : "memory")
#define VECTORS "v0", "v1", "v2", "v3", "memory"

enum { START = 15, BEGIN = 0, READ = 1, WRITE = 2, COPY = 3, RANDOM_READ = 4, STOP = 14 };

static char *const SOURCE = (char *)0x48000000, *const TARGET = (char *)0x4a000000;

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
    TWICE(read_lines(SOURCE, BYTES), READ);
    TWICE(write_lines(TARGET, BYTES), WRITE);
    TWICE(copy_lines(SOURCE, TARGET, BYTES), COPY);
    for (u64 kibibytes = LEAST_KIBIBYTES; kibibytes <= MOST_KIBIBYTES; kibibytes *= 2)
        TWICE(read_at_random(kibibytes << 10, TIMES), RANDOM_READ);
    MARK(STOP);
}

/* Give the core its vector registers and a stack, and power the machine off at the end. */
void begin(void)
{
    measure();
    __asm__ volatile("movz w0, #8\n movk w0, #0x8400, lsl #16\n hvc #0");
}

__asm__(".globl _start\n _start: mov x0, #0x300000\n msr cpacr_el1, x0\n isb\n mov x0, #0x47000000\n mov sp, x0\n"
        "b begin\n");
