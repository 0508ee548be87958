/// The whole library and <torch/torch.h> in one header.
///
/// Its parts, each a header that compiles in less time: tutti/train.h is all that a program with
/// fit() needs, tutti/loops.h what loops of one's own do, tutti/data.h files and datasets. Code
/// that uses a single floor (a tool that talks over a Group) includes that floor's headers and
/// stays free of LibTorch.
#pragma once

#include <torch/torch.h>

#include "tutti/data.h"
#include "tutti/files.h"
#include "tutti/loops.h"
#include "tutti/model_parallel.h"
#include "tutti/plan.h"
#include "tutti/servers.h"
#include "tutti/start.h"
#include "tutti/train.h"
