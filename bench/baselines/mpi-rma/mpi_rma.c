/* Open MPI (or any MPI-3) one-sided, as a baseline of tidewater-bench: rank 0 reads and adds to memory
 * of rank 1, which takes no part.
 *
 *   mpicc -O2 -o mpi_rma mpi_rma.c
 *   mpirun -n 2 ./mpi_rma TEST MILLISECONDS
 *
 * Prints "TEST MICROSECONDS WRONG": the median of samples, and values that were not what they must
 * be. The tests:
 *   get          MPI_Get of 256 bytes and MPI_Win_flush, 64 in a sample, by 64
 *   gather       1,024 MPI_Get of 256 bytes from random places of 256 MB, one MPI_Win_flush
 *   accumulate   MPI_Accumulate (MPI_SUM) of 64 floats and MPI_Win_flush
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROW_FLOATS = 64, ROWS = 1000000, GROUP = 64, BATCH = 1024, SAMPLES_MAX = 1 << 20 };

static double samples[SAMPLES_MAX];
static float landing[BATCH * ROW_FLOATS];
static unsigned long long seed = 1;

static unsigned random_row(void) {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return (unsigned)(seed >> 33) % ROWS;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(int count) {
    qsort(samples, (size_t)count, sizeof samples[0], by_value);
    return count ? samples[count / 2] : 0.0;
}

static MPI_Aint place(unsigned row) {
    return (MPI_Aint)row * ROW_FLOATS * (MPI_Aint)sizeof(float);
}

static void get(MPI_Win window, float *to, unsigned row) {
    MPI_Get(to, ROW_FLOATS, MPI_FLOAT, 1, place(row), ROW_FLOATS, MPI_FLOAT, window);
}

/* Row r holds the value r in all of its elements. */
static long wrong_elements(const float *row, float due) {
    long wrong = 0;
    for (int i = 0; i < ROW_FLOATS; i++) wrong += row[i] != due;
    return wrong;
}

static double one_row(MPI_Win window, double seconds, long *wrong) {
    int count = 0;
    for (double end = MPI_Wtime() + seconds; MPI_Wtime() < end && count < SAMPLES_MAX;) {
        memset(landing, 0xff, ROW_FLOATS * sizeof(float));
        double from = MPI_Wtime();
        for (int i = 0; i < GROUP; i++) {
            get(window, landing, 7);
            MPI_Win_flush(1, window);
        }
        samples[count++] = (MPI_Wtime() - from) * 1e6 / GROUP;
        *wrong += wrong_elements(landing, 7);
    }
    return median(count);
}

static double many_rows(MPI_Win window, double seconds, long *wrong) {
    int count = 0;
    /* Every page once, so that none is mapped for the first time while it is timed. */
    for (unsigned row = 0; row < ROWS; row += 16) get(window, landing, row);
    MPI_Win_flush(1, window);
    for (double end = MPI_Wtime() + seconds; MPI_Wtime() < end && count < SAMPLES_MAX;) {
        unsigned rows[BATCH];
        for (int i = 0; i < BATCH; i++) rows[i] = random_row();
        double from = MPI_Wtime();
        for (int i = 0; i < BATCH; i++) get(window, landing + i * ROW_FLOATS, rows[i]);
        MPI_Win_flush(1, window);
        samples[count++] = (MPI_Wtime() - from) * 1e6;
        for (int i = 0; i < BATCH; i++)
            *wrong += wrong_elements(landing + i * ROW_FLOATS, (float)rows[i]);
    }
    return median(count);
}

static double add(MPI_Win window, double seconds, long *wrong) {
    float ones[ROW_FLOATS];
    for (int i = 0; i < ROW_FLOATS; i++) ones[i] = 1;
    int count = 0;
    for (double end = MPI_Wtime() + seconds; MPI_Wtime() < end && count < SAMPLES_MAX;) {
        double from = MPI_Wtime();
        MPI_Accumulate(ones, ROW_FLOATS, MPI_FLOAT, 1, place(0), ROW_FLOATS, MPI_FLOAT, MPI_SUM,
                       window);
        MPI_Win_flush(1, window);
        samples[count++] = (MPI_Wtime() - from) * 1e6;
    }
    get(window, landing, 0);
    MPI_Win_flush(1, window);
    *wrong += wrong_elements(landing, (float)count);
    return median(count);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const char *test = argc > 1 ? argv[1] : "";
    double seconds = argc > 2 ? atof(argv[2]) / 1e3 : 0;
    int many = strcmp(test, "gather") == 0;
    if (size != 2 || !(seconds > 0)
        || !(many || strcmp(test, "get") == 0 || strcmp(test, "accumulate") == 0)) {
        if (rank == 0)
            fprintf(stderr, "usage: mpirun -n 2 mpi_rma get|gather|accumulate MILLISECONDS\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    unsigned rows = many ? ROWS : 16;
    float *memory;
    MPI_Win window;
    MPI_Win_allocate(rank == 1 ? place(rows) : 0, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory,
                     &window);
    if (rank == 1) {
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 1, 0, window);
        for (long i = 0; i < (long)rows * ROW_FLOATS; i++) memory[i] = (float)(i / ROW_FLOATS);
        MPI_Win_unlock(1, window);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        long wrong = 0;
        MPI_Win_lock_all(0, window);
        double us = many                         ? many_rows(window, seconds, &wrong)
                    : strcmp(test, "get") == 0 ? one_row(window, seconds, &wrong)
                                                 : add(window, seconds, &wrong);
        printf("%s %.4f %ld\n", test, us, wrong);
        MPI_Win_unlock_all(window);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_free(&window);
    MPI_Finalize();
    return 0;
}
