/* MPI's side of `tutti bench compare --all-reduce`: mpirun -n N mpi_all_reduce ITERATIONS BYTES...
 *
 * Prints one JSON line a size on rank 0. Each rank fills its buffer before and reads it after, outside
 * the timed region, so that the caches are in the state in which training leaves them. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { kWarmup = 3 };

static int by_value(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static void measure(long bytes, int iterations, int rank, int ranks) {
  const long count = bytes / 4 > 0 ? bytes / 4 : 1;
  float* data = malloc(count * sizeof *data);
  double* times = malloc(iterations * sizeof *times);
  const float expected = ranks * (ranks + 1) / 2.0f;
  int correct = 1;
  for (int i = 0; i < iterations + kWarmup; ++i) {
    for (long j = 0; j < count; ++j) data[j] = rank + 1;
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    MPI_Allreduce(MPI_IN_PLACE, data, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    const double end = MPI_Wtime();
    for (long j = 0; j < count; ++j) correct &= data[j] == expected;
    if (i >= kWarmup) times[i - kWarmup] = (end - begin) * 1e6;
  }
  qsort(times, iterations, sizeof *times, by_value);
  if (rank == 0)
    printf("{\"bytes\": %ld, \"p50_us\": %.3f, \"correct\": %s}\n", bytes, times[iterations / 2],
           correct ? "true" : "false");
  free(times);
  free(data);
}

int main(int argc, char** argv) {
  int rank, ranks;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  for (int i = 2; i < argc; ++i) measure(atol(argv[i]), atoi(argv[1]), rank, ranks);
  MPI_Finalize();
  return 0;
}
