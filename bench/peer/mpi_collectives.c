/* MPI's side of `tutti_bench all-reduce`: mpirun -n N mpi_collectives COLLECTIVE ITERATIONS BYTES...
 *
 * Prints one JSON line a size on rank 0. A time is the slowest rank's, and below 8 KiB the mean of a row of
 * operations (broadcasts from every rank in turn). Buffers are filled before and read after, outside the
 * timed region, so that the caches are in the state in which training leaves them. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kWarmup = 3, kRow = 20, kRowBytes = 8 << 10, kLongBytes = 64 << 20 };

typedef struct {
  const char* collective;
  int rank, ranks, repeats;
  long whole, part, num_input, num_output; /* floats */
  float *input, *output;
} Work;

static int is(const Work* work, const char* name) { return strcmp(work->collective, name) == 0; }

static int by_value(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static void prepare(Work* work, long bytes) {
  const int in_place = is(work, "all_reduce") || is(work, "broadcast");
  work->repeats = bytes < kRowBytes;
  work->whole = bytes / 4;
  work->part = work->whole / work->ranks;
  work->num_input = in_place ? 0 : is(work, "all_gather") ? work->part : work->whole;
  work->num_output = is(work, "reduce_scatter") ? work->part : work->whole;
  work->input = malloc((work->num_input + 1) * sizeof(float));
  work->output = malloc((work->num_output + 1) * sizeof(float));
}

static void fill(Work* work) {
  for (long i = 0; i < work->num_input; ++i) work->input[i] = work->rank + 1;
  for (long i = 0; i < work->num_output; ++i) work->output[i] = work->rank + 1;
}

static void call(Work* work, int number) {
  const MPI_Op op = work->repeats ? MPI_MAX : MPI_SUM;
  const int whole = (int)work->whole, part = (int)work->part;
  const MPI_Comm all = MPI_COMM_WORLD;
  if (is(work, "all_reduce"))
    MPI_Allreduce(MPI_IN_PLACE, work->output, whole, MPI_FLOAT, op, all);
  else if (is(work, "broadcast"))
    MPI_Bcast(work->output, whole, MPI_FLOAT, number % work->ranks, all);
  else if (is(work, "all_gather"))
    MPI_Allgather(work->input, part, MPI_FLOAT, work->output, part, MPI_FLOAT, all);
  else if (is(work, "reduce_scatter"))
    MPI_Reduce_scatter_block(work->input, work->output, part, MPI_FLOAT, op, all);
  else if (is(work, "barrier"))
    MPI_Barrier(all);
  else
    MPI_Alltoall(work->input, part, MPI_FLOAT, work->output, part, MPI_FLOAT, all);
}

static int is_right(const Work* work) {
  const int reduces = is(work, "all_reduce") || is(work, "reduce_scatter");
  const float reduced = work->repeats ? work->ranks : work->ranks * (work->ranks + 1) / 2.0f;
  int right = 1;
  for (long i = 0; i < work->num_output; ++i) {
    const float wanted = reduces                 ? reduced
                         : is(work, "broadcast") ? 1
                                                 : i / work->part + 1;
    right &= work->output[i] == wanted;
  }
  return right;
}

static void measure(Work work, long bytes, int iterations) {
  prepare(&work, bytes);
  if (bytes >= kLongBytes) iterations = (iterations + 2) / 3;
  double* times = malloc(iterations * sizeof *times);
  double* slowest = malloc(iterations * sizeof *slowest);
  const int row = work.repeats ? kRow : 1;
  int right = 1, all_right = 1;
  for (int i = 0; i < iterations + kWarmup; ++i) {
    fill(&work);
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    for (int j = 0; j < row; ++j) call(&work, j);
    const double end = MPI_Wtime();
    right &= is_right(&work);
    if (i >= kWarmup) times[i - kWarmup] = (end - begin) * 1e6 / row;
  }
  MPI_Reduce(times, slowest, iterations, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  MPI_Reduce(&right, &all_right, 1, MPI_INT, MPI_MIN, 0, MPI_COMM_WORLD);
  qsort(slowest, iterations, sizeof *slowest, by_value);
  if (work.rank == 0)
    printf("{\"bytes\": %ld, \"p50_us\": %.3f, \"correct\": %s}\n", bytes, slowest[iterations / 2],
           all_right ? "true" : "false");
  free(times);
  free(slowest);
  free(work.input);
  free(work.output);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  Work work = {.collective = argv[1]};
  MPI_Comm_rank(MPI_COMM_WORLD, &work.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &work.ranks);
  for (int i = 3; i < argc; ++i) measure(work, atol(argv[i]), atoi(argv[2]));
  MPI_Finalize();
  return 0;
}
