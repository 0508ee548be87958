/// Where a program begins: errors, deadlines, which devices are seen, who else is there.
///
/// join() makes a Group of processes; Strategy places replicas on threads, processes and devices.
#pragma once

#include "tutti/base/array.h"
#include "tutti/base/deadline.h"
#include "tutti/base/dtype.h"
#include "tutti/base/error.h"
#include "tutti/base/stop.h"
#include "tutti/cluster/join/join.h"
#include "tutti/comm/flight/flight_record.h"
#include "tutti/comm/group/group.h"
#include "tutti/comm/group/work.h"
#include "tutti/queues/config.h"
#include "tutti/strategy/strategy.h"
