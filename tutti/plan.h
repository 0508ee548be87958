/// What training costs on machines, those that are there and others: docs/guide/planning.md.
/// Without LibTorch.
#pragma once

#include "tutti/plan/choose.h"
#include "tutti/plan/link_fit.h"
#include "tutti/plan/machine.h"
#include "tutti/plan/measure.h"
#include "tutti/plan/predict.h"
