/// Parameter servers beside that: tables of embeddings that they hold, and a coordinator that hands
/// out steps to workers.
#pragma once

#include "tutti/coordinator/cluster_coordinator.h"
#include "tutti/nn/sparse_embedding.h"
#include "tutti/start.h"
