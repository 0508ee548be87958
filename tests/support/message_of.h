#pragma once

#include "tests/support/expect.h"
