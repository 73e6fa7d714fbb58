! Tidewater's client for Fortran 2008: the calls of tidewater.h, with the same names and meanings.
!
! Each function returns a status, TW_OK or another. Options are derived types with the library's
! defaults. Names that are passed must end in c_null_char: use tw_text. Expressions and names of
! functions are plain texts. Pulls and pushes take arrays of real32, real64, int32 and int64 of rank
! one: the generic names check type and length at compile time and hand the array over as it is; an
! array that is not contiguous is copied by the compiler.
!
! A push, an update, a deletion, a setting and a flush give a ticket only where it is asked for: tickets
! that are held are to be waited for, or given back by tw_push_forget.
!
! Calls of C that are not here: tw_abi_version, tw_barrier_finish, tw_barrier_start, tw_call_drop,
! tw_call_test, tw_load_finish, tw_load_function, tw_load_start, tw_pull_cancel, tw_pull_range_start,
! tw_pull_start, tw_pull_test, tw_pull_wait, tw_save_finish, tw_save_start, tw_session_counters,
! tw_status_name, tw_table_create_finish, tw_table_create_start, tw_table_describe, tw_version.
!
!   gfortran -c tidewater.f90
!   gfortran program.f90 tidewater.o $(pkg-config --libs tidewater)
module tidewater
    use, intrinsic :: iso_c_binding
    use, intrinsic :: iso_fortran_env, only: int8, int32, int64, real32, real64
    implicit none
    public

    integer(c_int), parameter :: TW_OK = 0, TW_ERR_NULL = 1, TW_ERR_HANDLE = 2, TW_ERR_CLOSED = 3, &
        TW_ERR_ARGUMENT = 4, TW_ERR_DEADLINE = 5, TW_ERR_REJECTED = 6, TW_ERR_REFUSED = 7, &
        TW_ERR_LOST = 8, TW_ERR_PROTOCOL = 9, TW_ERR_ENVIRONMENT = 10, TW_ERR_THREAD = 11, &
        TW_ERR_FORKED = 12, TW_ERR_PANIC = 13
    integer(c_int), parameter :: TW_F32 = 1, TW_F64 = 2, TW_I32 = 3, TW_I64 = 4
    integer(c_int), parameter :: TW_SPARSE = 1, TW_ROWS = 2, TW_RANGE = 3
    integer(c_int), parameter :: TW_SUM = 1, TW_ASSIGN = 2, TW_GRADIENT = 3, TW_MIN = 4, TW_MAX = 5
    integer(c_int), parameter :: TW_EXACT = 0, TW_BF16 = 1, TW_F16 = 2, TW_INT8 = 3
    integer(c_int), parameter :: TW_REDUCE_SUM = 1, TW_REDUCE_MIN = 2, TW_REDUCE_MAX = 3, &
        TW_REDUCE_AND = 4, TW_REDUCE_PRODUCT = 5, TW_REDUCE_BIT_AND = 6, TW_REDUCE_BIT_OR = 7, &
        TW_REDUCE_BIT_XOR = 8
    integer(c_int), parameter :: TW_CONSISTENT = 0, TW_HOGWILD = 1, TW_SNAPSHOT = 2, TW_GATHER = 3
    integer(c_int), parameter :: TW_CREATE = 0, TW_INITIAL = 1
    integer(c_int), parameter :: TW_OPTIMIZER_DEFAULT = 0, TW_OPTIMIZER_NONE = 1, TW_SGD = 2, &
        TW_MOMENTUM = 3, TW_NESTEROV = 4, TW_ADAGRAD = 5, TW_ADAM = 6, TW_FTRL = 7, &
        TW_RMSPROP = 8, TW_ADAMW = 9, TW_ROW_ADAGRAD = 10, TW_AMSGRAD = 11, &
        TW_ADADELTA = 12, TW_PROXIMAL_SGD = 13, TW_PROXIMAL_ADAGRAD = 14
    integer(c_int), parameter :: TW_SCHEDULE_CONSTANT = 1, TW_SCHEDULE_STEP = 2, &
        TW_SCHEDULE_INVERSE_SQRT = 3, TW_SCHEDULE_COSINE = 4
    integer(c_int), parameter :: TW_NORM_1 = 1, TW_NORM_2 = 2, TW_NORM_MAX = 3
    integer(c_int), parameter :: TW_ZEROS = 0, TW_CONSTANT = 1, TW_UNIFORM = 2, TW_NORMAL = 3
    integer(c_int), parameter :: TW_IMMEDIATE = 0, TW_CLOCK_SUM = 1, TW_CLOCK_MEAN = 2
    integer(c_int), parameter :: TW_DURABILITY_NONE = 0, TW_WARM = 1
    integer(c_int), parameter :: TW_ASP = 0, TW_BSP = 1, TW_SSP = 2
    integer(c_int), parameter :: TW_TRANSPORT_DEFAULT = 0, TW_SHM = 1, TW_TCP = 2, TW_VERBS = 3
    integer(c_int), parameter :: TW_THREAD_SINGLE = 0, TW_THREAD_FUNNELED = 1, &
        TW_THREAD_SERIALIZED = 2, TW_THREAD_MULTIPLE = 3

    type, bind(c) :: tw_session_options
        integer(c_size_t) :: size = 112
        type(c_ptr) :: coordinator = c_null_ptr, token_file = c_null_ptr
        type(c_ptr) :: job_namespace = c_null_ptr, rdma_device = c_null_ptr
        integer(c_int32_t) :: has_rank = 0, rank = 0, workers = 0, transport = TW_TRANSPORT_DEFAULT
        integer(c_int32_t) :: sync = TW_ASP, staleness = 0, thread_level = TW_THREAD_SINGLE
        integer(c_int32_t) :: progress_interval_us = 0
        real(c_double) :: timeout_s = 0, clock_timeout_s = 0, join_timeout_s = 0
        integer(c_int64_t) :: ring_bytes = 0, memory_budget = 0
    end type

    type, bind(c) :: tw_session_info
        integer(c_size_t) :: size = 32
        integer(c_int32_t) :: rank = 0, workers = 0, servers = 0, transport = 0
        integer(c_int32_t) :: thread_level = 0, thread = 0
    end type

    type, bind(c) :: tw_table_options
        integer(c_size_t) :: size = 216
        type(c_ptr) :: name = c_null_ptr
        integer(c_int32_t) :: dtype = 0, kind = 0
        integer(c_int64_t) :: rows = 0
        integer(c_int32_t) :: cols = 0, partitions = 0
        integer(c_int32_t) :: optimizer = TW_OPTIMIZER_DEFAULT, init = TW_ZEROS
        real(c_double) :: hyper(4) = 0, init_values(2) = 0
        integer(c_int64_t) :: seed = 0
        integer(c_int32_t) :: effect = TW_IMMEDIATE, domain = 0, block_bytes = 0, snapshot = 0
        integer(c_int32_t) :: allow_not_finite = 0, reserved = 0
        real(c_double) :: weight_decay = 0, clip_value = 0, clip_norm = 0, initial_accumulator = 0
        integer(c_int32_t) :: by_staleness = 0, versions = 0
        integer(c_int32_t) :: redo = 0, durability = TW_DURABILITY_NONE
        integer(c_int32_t) :: expire_after = 0, admit_after = 0
        ! c_loc of an array of integer(c_int32_t): the server of each partition
        type(c_ptr) :: partition_servers = c_null_ptr
        integer(c_size_t) :: partition_server_count = 0
        ! c_loc of an array of integer(c_int64_t): the first row or element of each partition, from 0
        type(c_ptr) :: partition_starts = c_null_ptr
        integer(c_size_t) :: partition_start_count = 0
    end type

    type, bind(c) :: tw_pull_options
        integer(c_size_t) :: size = 32
        integer(c_int32_t) :: mode = TW_CONSISTENT, missing = TW_CREATE
        real(c_double) :: timeout_s = 0
        ! c_loc of a tw_pulled
        type(c_ptr) :: pulled = c_null_ptr
    end type

    type, bind(c) :: tw_group_range
        integer(c_int64_t) :: table = 0, first = 0
        type(c_ptr) :: out = c_null_ptr
        integer(c_size_t) :: elements = 0
        integer(c_int32_t) :: dtype = 0, reserved = 0
    end type

    type, bind(c) :: tw_pulled
        integer(c_size_t) :: size = 40
        integer(c_int64_t) :: version = 0, smallest = 0, largest = 0
        integer(c_int32_t) :: has_version = 0, has_stores = 0
    end type

    type, bind(c) :: tw_push_options
        integer(c_size_t) :: size = 32
        real(c_double) :: weight = 0
        integer(c_int32_t) :: has_weight = 0, encoding = TW_EXACT, block = 0, reserved = 0
    end type

    type, bind(c) :: tw_function_options
        integer(c_size_t) :: size = 64
        type(c_ptr) :: inputs = c_null_ptr
        integer(c_size_t) :: input_count = 0
        type(c_ptr) :: parameters = c_null_ptr
        integer(c_size_t) :: parameter_count = 0
        integer(c_int32_t) :: has_range = 0, reserved = 0
        integer(c_int64_t) :: first = 0, count = 0
    end type

    type, bind(c) :: tw_buffer_options
        integer(c_size_t) :: size = 48
        integer(c_int32_t) :: op = 0, reserved = 0
        integer(c_int64_t) :: rows_max = 0, bytes_max = 0
        real(c_double) :: threshold = 0, weight = 0
    end type

    type, bind(c) :: tw_scan_cursor
        integer(c_int32_t) :: partition = 0, end = 0
        integer(c_int64_t) :: slot = 0
    end type

    type, bind(c) :: tw_task_options
        integer(c_size_t) :: size = 88
        type(c_ptr) :: name = c_null_ptr
        integer(c_int64_t) :: task_size = 0
        integer(c_int32_t) :: epochs = 0, strict_epochs = 0, shuffled = 0, failures_max = 0
        integer(c_int64_t) :: seed = 0
        integer(c_int32_t) :: losses_max = 0, held_max = 0
        integer(c_int64_t) :: steps_max = 0
        real(c_double) :: timeout_s = 0
        integer(c_int32_t) :: at_least_once = 0, ticking = 0, domain = 0, reserved = 0
    end type

    type, bind(c) :: tw_task_info
        integer(c_size_t) :: size = 40
        integer(c_int64_t) :: number = 0, first = 0, end = 0
        integer(c_int32_t) :: epoch = 0, failures = 0
    end type

    type, bind(c) :: tw_schedule
        integer(c_size_t) :: size = 64
        integer(c_int32_t) :: kind = 0, reserved = 0
        real(c_double) :: rate = 0, last = 0, factor = 0
        integer(c_int64_t) :: every = 0, warm_up = 0, iterations = 0
    end type

    interface
        integer(c_int) function tw_session_open(options, session) bind(c)
            import :: c_int, c_ptr, tw_session_options
            type(tw_session_options), intent(in) :: options
            type(c_ptr), intent(out) :: session
        end function
        integer(c_int) function tw_session_observe(options, session) bind(c)
            import :: c_int, c_ptr, tw_session_options
            type(tw_session_options), intent(in) :: options
            type(c_ptr), intent(out) :: session
        end function
        integer(c_int) function tw_begin(options, rank, size, servers, broadcast, context, session) bind(c)
            import :: c_int, c_int32_t, c_ptr, c_funptr, tw_session_options
            type(tw_session_options), intent(in) :: options
            integer(c_int32_t), value :: rank, size, servers
            type(c_funptr), value :: broadcast
            type(c_ptr), value :: context
            type(c_ptr), intent(out) :: session
        end function
        integer(c_int) function tw_leave(session) bind(c)
            import :: c_int, c_ptr
            type(c_ptr), value :: session
        end function
        integer(c_int) function tw_session_sibling(session, sibling) bind(c)
            import :: c_int, c_ptr
            type(c_ptr), value :: session
            type(c_ptr), intent(out) :: sibling
        end function
        integer(c_int) function tw_session_close(session) bind(c)
            import :: c_int, c_ptr
            type(c_ptr), value :: session
        end function
        integer(c_int) function tw_session_free(session) bind(c)
            import :: c_int, c_ptr
            type(c_ptr), intent(inout) :: session
        end function
        integer(c_int) function tw_session_describe(session, info) bind(c)
            import :: c_int, c_ptr, tw_session_info
            type(c_ptr), value :: session
            type(tw_session_info), intent(inout) :: info
        end function
        integer(c_int) function tw_table_create(session, options, table) bind(c)
            import :: c_int, c_ptr, c_int64_t, tw_table_options
            type(c_ptr), value :: session
            type(tw_table_options), intent(in) :: options
            integer(c_int64_t), intent(out) :: table
        end function
        integer(c_int) function tw_table_open(session, name, dtype, table) bind(c)
            import :: c_int, c_ptr, c_char, c_int32_t, c_int64_t
            type(c_ptr), value :: session
            character(kind=c_char), intent(in) :: name(*)
            integer(c_int32_t), value :: dtype
            integer(c_int64_t), intent(out) :: table
        end function
        integer(c_int) function tw_table_release(session, table) bind(c)
            import :: c_int, c_ptr, c_int64_t
            type(c_ptr), value :: session
            integer(c_int64_t), intent(inout) :: table
        end function
        integer(c_int) function tw_table_set_optimizer(session, table, options, ticket) bind(c)
            import :: c_int, c_ptr, c_int64_t, tw_table_options
            type(c_ptr), value :: session
            integer(c_int64_t), value :: table
            type(tw_table_options), intent(in) :: options
            integer(c_int64_t), intent(out), optional :: ticket
        end function
        integer(c_int) function tw_keys_count(session, table, count) bind(c)
            import :: c_int, c_ptr, c_int64_t
            type(c_ptr), value :: session
            integer(c_int64_t), value :: table
            integer(c_int64_t), intent(out) :: count
        end function
        integer(c_int) function tw_keys_delete_c(session, table, keys, rows, ticket) &
                bind(c, name="tw_keys_delete")
            import :: c_int, c_ptr, c_int64_t, c_size_t
            type(c_ptr), value :: session
            integer(c_int64_t), value :: table
            integer(c_int64_t), intent(in) :: keys(*)
            integer(c_size_t), value :: rows
            integer(c_int64_t), intent(out), optional :: ticket
        end function
        integer(c_int) function tw_keys_exist_c(session, table, keys, rows, stored) &
                bind(c, name="tw_keys_exist")
            import :: c_int, c_ptr, c_int8_t, c_int64_t, c_size_t
            type(c_ptr), value :: session
            integer(c_int64_t), value :: table
            integer(c_int64_t), intent(in) :: keys(*)
            integer(c_size_t), value :: rows
            integer(c_int8_t), intent(out) :: stored(*)
        end function
        integer(c_int) function tw_keys_scan_c(session, table, cursor, keys, room, values, &
                elements, dtype, count) bind(c, name="tw_keys_scan")
            import :: c_int, c_ptr, c_int32_t, c_int64_t, c_size_t, tw_scan_cursor
            type(c_ptr), value :: session, values
            integer(c_int64_t), value :: table
            type(tw_scan_cursor), intent(inout) :: cursor
            integer(c_int64_t), intent(out) :: keys(*)
            integer(c_size_t), value :: room, elements
            integer(c_int32_t), value :: dtype
            integer(c_size_t), intent(out) :: count
        end function
        integer(c_int) function tw_table_schedule(session, table, schedule, iteration, ticket) bind(c)
            import :: c_int, c_ptr, c_int64_t, tw_schedule
            type(c_ptr), value :: session
            integer(c_int64_t), value :: table, iteration
            type(tw_schedule), intent(in) :: schedule
            integer(c_int64_t), intent(out), optional :: ticket
        end function
        integer(c_int) function tw_schedule_rate(schedule, iteration, rate) bind(c)
            import :: c_int, c_int64_t, c_double, tw_schedule
            type(tw_schedule), intent(in) :: schedule
            integer(c_int64_t), value :: iteration
            real(c_double), intent(out) :: rate
        end function
        ! Push buffers: updates that are added up by key and pushed together
        integer(c_int) function tw_buffer_create(session, table, options, buffer) bind(c)
            import :: c_int, c_ptr, c_int64_t, tw_buffer_options
            type(c_ptr), value :: session
            integer(c_int64_t), value :: table
            type(tw_buffer_options), intent(in) :: options
            integer(c_int64_t), intent(out) :: buffer
        end function
        integer(c_int) function tw_buffer_add_c(session, buffer, keys, rows, values, elements, &
                dtype) bind(c, name="tw_buffer_add")
            import :: c_int, c_ptr, c_int32_t, c_int64_t, c_size_t
            type(c_ptr), value :: session, values
            integer(c_int64_t), value :: buffer
            integer(c_int64_t), intent(in) :: keys(*)
            integer(c_size_t), value :: rows, elements
            integer(c_int32_t), value :: dtype
        end function
        integer(c_int) function tw_buffer_flush(session, buffer, all, ticket) bind(c)
            import :: c_int, c_ptr, c_int32_t, c_int64_t
            type(c_ptr), value :: session
            integer(c_int64_t), value :: buffer
            integer(c_int32_t), value :: all
            integer(c_int64_t), intent(out), optional :: ticket
        end function
        integer(c_int) function tw_buffer_describe(session, buffer, rows, bytes) bind(c)
            import :: c_int, c_ptr, c_int64_t, c_size_t
            type(c_ptr), value :: session
            integer(c_int64_t), value :: buffer
            integer(c_size_t), intent(out) :: rows, bytes
        end function
        integer(c_int) function tw_buffer_clear(session, buffer) bind(c)
            import :: c_int, c_ptr, c_int64_t
            type(c_ptr), value :: session
            integer(c_int64_t), value :: buffer
        end function
        integer(c_int) function tw_buffer_free(session, buffer) bind(c)
            import :: c_int, c_ptr, c_int64_t
            type(c_ptr), value :: session
            integer(c_int64_t), intent(inout) :: buffer
        end function
        ! Vectors: tables by ranges with one column; names by tw_text
        integer(c_int) function tw_vector_create(session, name, elements, dtype, vector) bind(c)
            import :: c_int, c_ptr, c_char, c_int32_t, c_int64_t
            type(c_ptr), value :: session
            character(kind=c_char), intent(in) :: name(*)
            integer(c_int64_t), value :: elements
            integer(c_int32_t), value :: dtype
            integer(c_int64_t), intent(out) :: vector
        end function
        integer(c_int) function tw_vector_fill(session, vector, number) bind(c)
            import :: c_int, c_ptr, c_int64_t, c_double
            type(c_ptr), value :: session
            integer(c_int64_t), value :: vector
            real(c_double), value :: number
        end function
        integer(c_int) function tw_vector_copy(session, vector, from) bind(c)
            import :: c_int, c_ptr, c_int64_t
            type(c_ptr), value :: session
            integer(c_int64_t), value :: vector, from
        end function
        integer(c_int) function tw_vector_scale(session, vector, factor) bind(c)
            import :: c_int, c_ptr, c_int64_t, c_double
            type(c_ptr), value :: session
            integer(c_int64_t), value :: vector
            real(c_double), value :: factor
        end function
        integer(c_int) function tw_vector_axpy(session, vector, factor, x) bind(c)
            import :: c_int, c_ptr, c_int64_t, c_double
            type(c_ptr), value :: session
            integer(c_int64_t), value :: vector, x
            real(c_double), value :: factor
        end function
        integer(c_int) function tw_vector_dot(session, x, y, number) bind(c)
            import :: c_int, c_ptr, c_int64_t, c_double
            type(c_ptr), value :: session
            integer(c_int64_t), value :: x, y
            real(c_double), intent(out) :: number
        end function
        integer(c_int) function tw_vector_norm(session, vector, norm, number) bind(c)
            import :: c_int, c_ptr, c_int32_t, c_int64_t, c_double
            type(c_ptr), value :: session
            integer(c_int64_t), value :: vector
            integer(c_int32_t), value :: norm
            real(c_double), intent(out) :: number
        end function
        integer(c_int) function tw_push_test(session, ticket, applied) bind(c)
            import :: c_int, c_ptr, c_int32_t, c_int64_t
            type(c_ptr), value :: session
            integer(c_int64_t), intent(inout) :: ticket
            integer(c_int32_t), intent(out) :: applied
        end function
        integer(c_int) function tw_push_wait(session, ticket, timeout_s) bind(c)
            import :: c_int, c_ptr, c_int64_t, c_double
            type(c_ptr), value :: session
            integer(c_int64_t), intent(inout) :: ticket
            real(c_double), value :: timeout_s
        end function
        integer(c_int) function tw_push_forget(session, ticket) bind(c)
            import :: c_int, c_ptr, c_int64_t
            type(c_ptr), value :: session
            integer(c_int64_t), intent(inout) :: ticket
        end function
        ! callback: c_funloc of a bind(c) subroutine of (type(c_ptr), value; integer(c_int), value; type(c_ptr), value)
        integer(c_int) function tw_push_on_applied(session, ticket, callback, user) bind(c)
            import :: c_int, c_ptr, c_funptr, c_int64_t
            type(c_ptr), value :: session, user
            integer(c_int64_t), value :: ticket
            type(c_funptr), value :: callback
        end function
        integer(c_int) function tw_tick(session, domain) bind(c)
            import :: c_int, c_ptr, c_int32_t
            type(c_ptr), value :: session
            integer(c_int32_t), value :: domain
        end function
        integer(c_int) function tw_domain_sync(session, domain, sync, staleness) bind(c)
            import :: c_int, c_ptr, c_int32_t
            type(c_ptr), value :: session
            integer(c_int32_t), value :: domain, sync, staleness
        end function
        integer(c_int) function tw_clock(session, mine, everybodys) bind(c)
            import :: c_int, c_ptr, c_int64_t
            type(c_ptr), value :: session
            integer(c_int64_t), intent(out) :: mine, everybodys
        end function
        ! Pins a version, given by c_loc, or the newest for c_null_ptr
        integer(c_int) function tw_pin(session, table, version, pinned) bind(c)
            import :: c_int, c_ptr, c_int64_t
            type(c_ptr), value :: session, version
            integer(c_int64_t), value :: table
            integer(c_int64_t), intent(out) :: pinned
        end function
        integer(c_int) function tw_unpin(session, table, version) bind(c)
            import :: c_int, c_ptr, c_int64_t
            type(c_ptr), value :: session
            integer(c_int64_t), value :: table, version
        end function
        ! The array by c_loc
        integer(c_int) function tw_pull_pinned(session, table, version, first, out, elements, &
                dtype, options) bind(c)
            import :: c_int, c_ptr, c_int32_t, c_int64_t, c_size_t
            type(c_ptr), value :: session, out, options
            integer(c_int64_t), value :: table, version, first
            integer(c_size_t), value :: elements
            integer(c_int32_t), value :: dtype
        end function
        integer(c_int) function tw_pull_group(session, ranges, count, options) bind(c)
            import :: c_int, c_ptr, c_size_t, tw_group_range
            type(c_ptr), value :: session, options
            type(tw_group_range), intent(in) :: ranges(*)
            integer(c_size_t), value :: count
        end function
        integer(c_int) function tw_wait_newer(session, table, version, timeout_s, newest) bind(c)
            import :: c_int, c_ptr, c_int64_t, c_double
            type(c_ptr), value :: session
            integer(c_int64_t), value :: table, version
            real(c_double), value :: timeout_s
            integer(c_int64_t), intent(out) :: newest
        end function
        integer(c_int) function tw_wait_until(session, table, tick, timeout_s, newest) bind(c)
            import :: c_int, c_ptr, c_int64_t, c_double
            type(c_ptr), value :: session
            integer(c_int64_t), value :: table, tick
            real(c_double), value :: timeout_s
            integer(c_int64_t), intent(out) :: newest
        end function
        integer(c_int) function tw_barrier(session, name, timeout_s) bind(c)
            import :: c_int, c_ptr, c_char, c_double
            type(c_ptr), value :: session
            character(kind=c_char), intent(in) :: name(*)
            real(c_double), value :: timeout_s
        end function
        ! Collective calls; arrays by c_loc
        integer(c_int) function tw_all_gather(session, values, elements, dtype, all, &
                all_elements) bind(c)
            import :: c_int, c_ptr, c_int32_t, c_size_t
            type(c_ptr), value :: session, values, all
            integer(c_size_t), value :: elements, all_elements
            integer(c_int32_t), value :: dtype
        end function
        integer(c_int) function tw_collective_ranks(session, ranks, room, count) bind(c)
            import :: c_int, c_ptr, c_size_t
            type(c_ptr), value :: session, ranks
            integer(c_size_t), value :: room
            integer(c_size_t), intent(out) :: count
        end function
        integer(c_int) function tw_all_reduce(session, values, elements, dtype, reduce) bind(c)
            import :: c_int, c_ptr, c_int32_t, c_size_t
            type(c_ptr), value :: session, values
            integer(c_size_t), value :: elements
            integer(c_int32_t), value :: dtype, reduce
        end function
        integer(c_int) function tw_broadcast(session, root, values, elements, dtype) bind(c)
            import :: c_int, c_ptr, c_int32_t, c_size_t
            type(c_ptr), value :: session, values
            integer(c_int32_t), value :: root, dtype
            integer(c_size_t), value :: elements
        end function
        integer(c_int) function tw_tasks_open(session, options, records, tasks) bind(c)
            import :: c_int, c_ptr, c_int64_t, tw_task_options
            type(c_ptr), value :: session
            type(tw_task_options), intent(in) :: options
            integer(c_int64_t), value :: records
            integer(c_int64_t), intent(out) :: tasks
        end function
        integer(c_int) function tw_tasks_next(session, tasks, task, given) bind(c)
            import :: c_int, c_ptr, c_int32_t, c_int64_t, tw_task_info
            type(c_ptr), value :: session
            integer(c_int64_t), value :: tasks
            type(tw_task_info), intent(inout) :: task
            integer(c_int32_t), intent(out) :: given
        end function
        integer(c_int) function tw_tasks_done(session, tasks, records, counted) bind(c)
            import :: c_int, c_ptr, c_int32_t, c_int64_t
            type(c_ptr), value :: session
            integer(c_int64_t), value :: tasks, records
            integer(c_int32_t), intent(out) :: counted
        end function
        ! reason ends in c_null_char: tw_text makes such a text.
        integer(c_int) function tw_tasks_fail(session, tasks, reason) bind(c)
            import :: c_int, c_ptr, c_char, c_int64_t
            type(c_ptr), value :: session
            integer(c_int64_t), value :: tasks
            character(kind=c_char), intent(in) :: reason(*)
        end function
        integer(c_int) function tw_tasks_close(session, tasks) bind(c)
            import :: c_int, c_ptr, c_int64_t
            type(c_ptr), value :: session
            integer(c_int64_t), intent(inout) :: tasks
        end function
        integer(c_int) function tw_walltime_watch(session, every) bind(c)
            import :: c_int, c_ptr, c_int32_t
            type(c_ptr), value :: session
            integer(c_int32_t), value :: every
        end function
        integer(c_int) function tw_walltime_over(session, over) bind(c)
            import :: c_int, c_ptr, c_int32_t
            type(c_ptr), value :: session
            integer(c_int32_t), intent(out) :: over
        end function
        integer(c_int) function tw_walltime_end(session, signal) bind(c)
            import :: c_int, c_ptr, c_int32_t
            type(c_ptr), value :: session
            integer(c_int32_t), intent(out) :: signal
        end function
        integer(c_int) function tw_flush(session) bind(c)
            import :: c_int, c_ptr
            type(c_ptr), value :: session
        end function
        integer(c_int) function tw_progress(session) bind(c)
            import :: c_int, c_ptr
            type(c_ptr), value :: session
        end function
        integer(c_int) function tw_batch_pushes(session, frames) bind(c)
            import :: c_int, c_ptr, c_int32_t
            type(c_ptr), value :: session
            integer(c_int32_t), value :: frames
        end function
        integer(c_int) function tw_finish(session) bind(c)
            import :: c_int, c_ptr
            type(c_ptr), value :: session
        end function
        integer(c_int) function tw_fail(session, reason) bind(c)
            import :: c_int, c_ptr, c_char
            type(c_ptr), value :: session
            character(kind=c_char), intent(in) :: reason(*)
        end function
        integer(c_int) function tw_save(session, directory, timeout_s, rows, bytes) bind(c)
            import :: c_int, c_ptr, c_char, c_double, c_int64_t
            type(c_ptr), value :: session
            character(kind=c_char), intent(in) :: directory(*)
            real(c_double), value :: timeout_s
            integer(c_int64_t), intent(out) :: rows, bytes
        end function
        integer(c_int) function tw_load(session, directory, timeout_s, tables) bind(c)
            import :: c_int, c_ptr, c_char, c_double, c_int64_t
            type(c_ptr), value :: session
            character(kind=c_char), intent(in) :: directory(*)
            real(c_double), value :: timeout_s
            integer(c_int64_t), intent(out) :: tables
        end function
        integer(c_int) function tw_pull_rows_c(session, table, keys, rows, out, elements, dtype, &
                options) bind(c, name="tw_pull_rows")
            import :: c_int, c_ptr, c_int32_t, c_int64_t, c_size_t
            type(c_ptr), value :: session, out, options
            integer(c_int64_t), value :: table
            integer(c_int64_t), intent(in) :: keys(*)
            integer(c_size_t), value :: rows, elements
            integer(c_int32_t), value :: dtype
        end function
        integer(c_int) function tw_pull_range_c(session, table, first, out, elements, dtype, &
                options) bind(c, name="tw_pull_range")
            import :: c_int, c_ptr, c_int32_t, c_int64_t, c_size_t
            type(c_ptr), value :: session, out, options
            integer(c_int64_t), value :: table, first
            integer(c_size_t), value :: elements
            integer(c_int32_t), value :: dtype
        end function
        integer(c_int) function tw_push_rows_c(session, table, keys, rows, values, elements, &
                dtype, op, options, ticket) bind(c, name="tw_push_rows_with")
            import :: c_int, c_ptr, c_int32_t, c_int64_t, c_size_t
            type(c_ptr), value :: session, values, options
            integer(c_int64_t), value :: table
            integer(c_int64_t), intent(in) :: keys(*)
            integer(c_size_t), value :: rows, elements
            integer(c_int32_t), value :: dtype, op
            integer(c_int64_t), intent(out), optional :: ticket
        end function
        integer(c_int) function tw_push_range_c(session, table, first, values, elements, &
                dtype, op, options, ticket) bind(c, name="tw_push_range_with")
            import :: c_int, c_ptr, c_int32_t, c_int64_t, c_size_t
            type(c_ptr), value :: session, values, options
            integer(c_int64_t), value :: table, first
            integer(c_size_t), value :: elements
            integer(c_int32_t), value :: dtype, op
            integer(c_int64_t), intent(out), optional :: ticket
        end function
        integer(c_int) function tw_update_c(session, target, expression, options, ticket) &
                bind(c, name="tw_update")
            import :: c_int, c_ptr, c_char, c_int64_t, tw_function_options
            type(c_ptr), value :: session
            integer(c_int64_t), value :: target
            character(kind=c_char), intent(in) :: expression(*)
            type(tw_function_options), intent(in) :: options
            integer(c_int64_t), intent(out), optional :: ticket
        end function
        integer(c_int) function tw_reduce_c(session, target, expression, reduction, options, &
                value, integer, found) bind(c, name="tw_reduce")
            import :: c_int, c_ptr, c_char, c_int32_t, c_int64_t, tw_function_options
            type(c_ptr), value :: session, value, integer, found
            integer(c_int64_t), value :: target
            character(kind=c_char), intent(in) :: expression(*)
            integer(c_int32_t), value :: reduction
            type(tw_function_options), intent(in) :: options
        end function
        integer(c_int) function tw_call_update_c(session, target, name, arguments, bytes, &
                options, ticket) bind(c, name="tw_call_update")
            import :: c_int, c_ptr, c_char, c_int64_t, c_size_t, tw_function_options
            type(c_ptr), value :: session, arguments
            integer(c_int64_t), value :: target
            character(kind=c_char), intent(in) :: name(*)
            integer(c_size_t), value :: bytes
            type(tw_function_options), intent(in) :: options
            integer(c_int64_t), intent(out), optional :: ticket
        end function
        integer(c_int) function tw_call_reduce_c(session, target, name, arguments, &
                argument_bytes, options, results, pieces, bytes) bind(c, name="tw_call_reduce")
            import :: c_int, c_ptr, c_char, c_int64_t, c_size_t, tw_function_options
            type(c_ptr), value :: session, arguments
            integer(c_int64_t), value :: target
            character(kind=c_char), intent(in) :: name(*)
            integer(c_size_t), value :: argument_bytes
            type(tw_function_options), intent(in) :: options
            integer(c_int64_t), intent(out) :: results
            integer(c_size_t), intent(out) :: pieces, bytes
        end function
        integer(c_int) function tw_results_take_c(session, results, out, bytes, lengths, &
                pieces) bind(c, name="tw_results_take")
            import :: c_int, c_ptr, c_int64_t, c_size_t
            type(c_ptr), value :: session, out, lengths
            integer(c_int64_t), intent(inout) :: results
            integer(c_size_t), value :: bytes, pieces
        end function
        integer(c_int) function tw_results_forget(session, results) bind(c)
            import :: c_int, c_ptr, c_int64_t
            type(c_ptr), value :: session
            integer(c_int64_t), intent(inout) :: results
        end function
        type(c_ptr) function tw_last_error_c() bind(c, name="tw_last_error")
            import :: c_ptr
        end function
        integer(c_size_t) function c_strlen(text) bind(c, name="strlen")
            import :: c_ptr, c_size_t
            type(c_ptr), value :: text
        end function
    end interface

    ! tw_pull_rows(session, table, keys, out [, options])
    interface tw_pull_rows
        procedure pull_rows_f32, pull_rows_f64, pull_rows_i32, pull_rows_i64
    end interface
    ! tw_pull_range(session, table, first, out [, options]); first counts from 0
    interface tw_pull_range
        procedure pull_range_f32, pull_range_f64, pull_range_i32, pull_range_i64
    end interface
    ! tw_push_rows(session, table, keys, values, op [, ticket, options])
    interface tw_push_rows
        procedure push_rows_f32, push_rows_f64, push_rows_i32, push_rows_i64
    end interface
    ! tw_push_range(session, table, first, values, op [, ticket, options])
    interface tw_push_range
        procedure push_range_f32, push_range_f64, push_range_i32, push_range_i64
    end interface
    ! tw_keys_scan(session, table, cursor, keys, count [, values]): begin with a tw_scan_cursor as it is;
    ! count becomes the number of keys, 0 after the end.
    interface tw_keys_scan
        procedure scan_keys, scan_f32, scan_f64, scan_i32, scan_i64
    end interface
    ! tw_buffer_add(session, buffer, keys, values)
    interface tw_buffer_add
        procedure buffer_add_f32, buffer_add_f64, buffer_add_i32, buffer_add_i64
    end interface
    ! tw_reduce(session, target, expression, reduction, value [, found, inputs, parameters, first,
    ! count]): value is real64, or int64 for the exact result of integer tables and of TW_REDUCE_AND;
    ! found becomes 0 when a minimum or maximum has no element.
    interface tw_reduce
        procedure reduce_real, reduce_integer
    end interface

contains

    ! What went wrong in this thread's last call that failed.
    function tw_last_error() result(text)
        character(len=:), allocatable :: text
        character(kind=c_char), pointer :: chars(:)
        type(c_ptr) :: at
        integer :: i, n
        at = tw_last_error_c()
        n = int(c_strlen(at))
        call c_f_pointer(at, chars, [n])
        allocate (character(len=n) :: text)
        do i = 1, n
            text(i:i) = chars(i)
        end do
    end function

    ! A text as C has it, without the blanks at its end.
    function tw_text(text) result(c)
        character(len=*), intent(in) :: text
        character(len=:, kind=c_char), allocatable :: c
        c = trim(text)//c_null_char
    end function

    function options_of(options) result(at)
        type(tw_pull_options), intent(in), target, optional :: options
        type(c_ptr) :: at
        at = c_null_ptr
        if (present(options)) at = c_loc(options)
    end function

    function push_options_of(options) result(at)
        type(tw_push_options), intent(in), target, optional :: options
        type(c_ptr) :: at
        at = c_null_ptr
        if (present(options)) at = c_loc(options)
    end function

    integer(c_int) function pull_rows_f32(session, table, keys, out, options) result(status)
        type(c_ptr), intent(in) :: session
        integer(int64), intent(in) :: table
        integer(int64), intent(in), contiguous :: keys(:)
        real(real32), intent(inout), target, contiguous :: out(:)
        type(tw_pull_options), intent(in), target, optional :: options
        status = tw_pull_rows_c(session, table, keys, size(keys, kind=c_size_t), c_loc(out), &
            size(out, kind=c_size_t), TW_F32, options_of(options))
    end function

    integer(c_int) function pull_range_f32(session, table, first, out, options) result(status)
        type(c_ptr), intent(in) :: session
        integer(int64), intent(in) :: table, first
        real(real32), intent(inout), target, contiguous :: out(:)
        type(tw_pull_options), intent(in), target, optional :: options
        status = tw_pull_range_c(session, table, first, c_loc(out), size(out, kind=c_size_t), &
            TW_F32, options_of(options))
    end function

    integer(c_int) function push_rows_f32(session, table, keys, values, op, ticket, options) &
            result(status)
        type(c_ptr), intent(in) :: session
        integer(int64), intent(in) :: table
        integer(int64), intent(in), contiguous :: keys(:)
        real(real32), intent(in), target, contiguous :: values(:)
        integer(c_int), intent(in) :: op
        integer(int64), intent(out), optional :: ticket
        type(tw_push_options), intent(in), target, optional :: options
        status = tw_push_rows_c(session, table, keys, size(keys, kind=c_size_t), c_loc(values), &
            size(values, kind=c_size_t), TW_F32, op, &
            push_options_of(options), ticket)
    end function

    integer(c_int) function push_range_f32(session, table, first, values, op, ticket, options) &
            result(status)
        type(c_ptr), intent(in) :: session
        integer(int64), intent(in) :: table, first
        real(real32), intent(in), target, contiguous :: values(:)
        integer(c_int), intent(in) :: op
        integer(int64), intent(out), optional :: ticket
        type(tw_push_options), intent(in), target, optional :: options
        status = tw_push_range_c(session, table, first, c_loc(values), &
            size(values, kind=c_size_t), TW_F32, op, &
            push_options_of(options), ticket)
    end function

    integer(c_int) function pull_rows_f64(session, table, keys, out, options) result(status)
        type(c_ptr), intent(in) :: session
        integer(int64), intent(in) :: table
        integer(int64), intent(in), contiguous :: keys(:)
        real(real64), intent(inout), target, contiguous :: out(:)
        type(tw_pull_options), intent(in), target, optional :: options
        status = tw_pull_rows_c(session, table, keys, size(keys, kind=c_size_t), c_loc(out), &
            size(out, kind=c_size_t), TW_F64, options_of(options))
    end function

    integer(c_int) function pull_range_f64(session, table, first, out, options) result(status)
        type(c_ptr), intent(in) :: session
        integer(int64), intent(in) :: table, first
        real(real64), intent(inout), target, contiguous :: out(:)
        type(tw_pull_options), intent(in), target, optional :: options
        status = tw_pull_range_c(session, table, first, c_loc(out), size(out, kind=c_size_t), &
            TW_F64, options_of(options))
    end function

    integer(c_int) function push_rows_f64(session, table, keys, values, op, ticket, options) &
            result(status)
        type(c_ptr), intent(in) :: session
        integer(int64), intent(in) :: table
        integer(int64), intent(in), contiguous :: keys(:)
        real(real64), intent(in), target, contiguous :: values(:)
        integer(c_int), intent(in) :: op
        integer(int64), intent(out), optional :: ticket
        type(tw_push_options), intent(in), target, optional :: options
        status = tw_push_rows_c(session, table, keys, size(keys, kind=c_size_t), c_loc(values), &
            size(values, kind=c_size_t), TW_F64, op, &
            push_options_of(options), ticket)
    end function

    integer(c_int) function push_range_f64(session, table, first, values, op, ticket, options) &
            result(status)
        type(c_ptr), intent(in) :: session
        integer(int64), intent(in) :: table, first
        real(real64), intent(in), target, contiguous :: values(:)
        integer(c_int), intent(in) :: op
        integer(int64), intent(out), optional :: ticket
        type(tw_push_options), intent(in), target, optional :: options
        status = tw_push_range_c(session, table, first, c_loc(values), &
            size(values, kind=c_size_t), TW_F64, op, &
            push_options_of(options), ticket)
    end function

    integer(c_int) function pull_rows_i32(session, table, keys, out, options) result(status)
        type(c_ptr), intent(in) :: session
        integer(int64), intent(in) :: table
        integer(int64), intent(in), contiguous :: keys(:)
        integer(int32), intent(inout), target, contiguous :: out(:)
        type(tw_pull_options), intent(in), target, optional :: options
        status = tw_pull_rows_c(session, table, keys, size(keys, kind=c_size_t), c_loc(out), &
            size(out, kind=c_size_t), TW_I32, options_of(options))
    end function

    integer(c_int) function pull_range_i32(session, table, first, out, options) result(status)
        type(c_ptr), intent(in) :: session
        integer(int64), intent(in) :: table, first
        integer(int32), intent(inout), target, contiguous :: out(:)
        type(tw_pull_options), intent(in), target, optional :: options
        status = tw_pull_range_c(session, table, first, c_loc(out), size(out, kind=c_size_t), &
            TW_I32, options_of(options))
    end function

    integer(c_int) function push_rows_i32(session, table, keys, values, op, ticket, options) &
            result(status)
        type(c_ptr), intent(in) :: session
        integer(int64), intent(in) :: table
        integer(int64), intent(in), contiguous :: keys(:)
        integer(int32), intent(in), target, contiguous :: values(:)
        integer(c_int), intent(in) :: op
        integer(int64), intent(out), optional :: ticket
        type(tw_push_options), intent(in), target, optional :: options
        status = tw_push_rows_c(session, table, keys, size(keys, kind=c_size_t), c_loc(values), &
            size(values, kind=c_size_t), TW_I32, op, &
            push_options_of(options), ticket)
    end function

    integer(c_int) function push_range_i32(session, table, first, values, op, ticket, options) &
            result(status)
        type(c_ptr), intent(in) :: session
        integer(int64), intent(in) :: table, first
        integer(int32), intent(in), target, contiguous :: values(:)
        integer(c_int), intent(in) :: op
        integer(int64), intent(out), optional :: ticket
        type(tw_push_options), intent(in), target, optional :: options
        status = tw_push_range_c(session, table, first, c_loc(values), &
            size(values, kind=c_size_t), TW_I32, op, &
            push_options_of(options), ticket)
    end function

    integer(c_int) function pull_rows_i64(session, table, keys, out, options) result(status)
        type(c_ptr), intent(in) :: session
        integer(int64), intent(in) :: table
        integer(int64), intent(in), contiguous :: keys(:)
        integer(int64), intent(inout), target, contiguous :: out(:)
        type(tw_pull_options), intent(in), target, optional :: options
        status = tw_pull_rows_c(session, table, keys, size(keys, kind=c_size_t), c_loc(out), &
            size(out, kind=c_size_t), TW_I64, options_of(options))
    end function

    integer(c_int) function pull_range_i64(session, table, first, out, options) result(status)
        type(c_ptr), intent(in) :: session
        integer(int64), intent(in) :: table, first
        integer(int64), intent(inout), target, contiguous :: out(:)
        type(tw_pull_options), intent(in), target, optional :: options
        status = tw_pull_range_c(session, table, first, c_loc(out), size(out, kind=c_size_t), &
            TW_I64, options_of(options))
    end function

    integer(c_int) function push_rows_i64(session, table, keys, values, op, ticket, options) &
            result(status)
        type(c_ptr), intent(in) :: session
        integer(int64), intent(in) :: table
        integer(int64), intent(in), contiguous :: keys(:)
        integer(int64), intent(in), target, contiguous :: values(:)
        integer(c_int), intent(in) :: op
        integer(int64), intent(out), optional :: ticket
        type(tw_push_options), intent(in), target, optional :: options
        status = tw_push_rows_c(session, table, keys, size(keys, kind=c_size_t), c_loc(values), &
            size(values, kind=c_size_t), TW_I64, op, &
            push_options_of(options), ticket)
    end function

    integer(c_int) function push_range_i64(session, table, first, values, op, ticket, options) &
            result(status)
        type(c_ptr), intent(in) :: session
        integer(int64), intent(in) :: table, first
        integer(int64), intent(in), target, contiguous :: values(:)
        integer(c_int), intent(in) :: op
        integer(int64), intent(out), optional :: ticket
        type(tw_push_options), intent(in), target, optional :: options
        status = tw_push_range_c(session, table, first, c_loc(values), &
            size(values, kind=c_size_t), TW_I64, op, &
            push_options_of(options), ticket)
    end function

    ! Deletes the rows of keys of a sparse table.
    integer(c_int) function tw_keys_delete(session, table, keys, ticket) result(status)
        type(c_ptr), intent(in) :: session
        integer(int64), intent(in) :: table
        integer(int64), intent(in), contiguous :: keys(:)
        integer(int64), intent(out), optional :: ticket
        status = tw_keys_delete_c(session, table, keys, size(keys, kind=c_size_t), ticket)
    end function

    ! Whether each key of a sparse table has a row; stored is as long as keys. TW_ERR_ARGUMENT if it is not,
    ! and tw_last_error has no text of that.
    integer(c_int) function tw_keys_exist(session, table, keys, stored) result(status)
        type(c_ptr), intent(in) :: session
        integer(int64), intent(in) :: table
        integer(int64), intent(in), contiguous :: keys(:)
        logical, intent(out) :: stored(:)
        integer(int8) :: answers(size(keys))
        answers = 0
        status = TW_ERR_ARGUMENT
        if (size(stored) /= size(keys)) return
        status = tw_keys_exist_c(session, table, keys, size(keys, kind=c_size_t), answers)
        stored = answers /= 0
    end function

    integer(c_int) function scan_keys(session, table, cursor, keys, count) result(status)
        type(c_ptr), intent(in) :: session
        integer(int64), intent(in) :: table
        type(tw_scan_cursor), intent(inout) :: cursor
        integer(int64), intent(out), contiguous :: keys(:)
        integer(c_size_t), intent(out) :: count
        status = tw_keys_scan_c(session, table, cursor, keys, size(keys, kind=c_size_t), &
            c_null_ptr, 0_c_size_t, 0, count)
    end function

    integer(c_int) function scan_f32(session, table, cursor, keys, count, values) result(status)
        type(c_ptr), intent(in) :: session
        integer(int64), intent(in) :: table
        type(tw_scan_cursor), intent(inout) :: cursor
        integer(int64), intent(out), contiguous :: keys(:)
        integer(c_size_t), intent(out) :: count
        real(real32), intent(inout), target, contiguous :: values(:)
        status = tw_keys_scan_c(session, table, cursor, keys, size(keys, kind=c_size_t), &
            c_loc(values), size(values, kind=c_size_t), TW_F32, count)
    end function

    integer(c_int) function scan_f64(session, table, cursor, keys, count, values) result(status)
        type(c_ptr), intent(in) :: session
        integer(int64), intent(in) :: table
        type(tw_scan_cursor), intent(inout) :: cursor
        integer(int64), intent(out), contiguous :: keys(:)
        integer(c_size_t), intent(out) :: count
        real(real64), intent(inout), target, contiguous :: values(:)
        status = tw_keys_scan_c(session, table, cursor, keys, size(keys, kind=c_size_t), &
            c_loc(values), size(values, kind=c_size_t), TW_F64, count)
    end function

    integer(c_int) function scan_i32(session, table, cursor, keys, count, values) result(status)
        type(c_ptr), intent(in) :: session
        integer(int64), intent(in) :: table
        type(tw_scan_cursor), intent(inout) :: cursor
        integer(int64), intent(out), contiguous :: keys(:)
        integer(c_size_t), intent(out) :: count
        integer(int32), intent(inout), target, contiguous :: values(:)
        status = tw_keys_scan_c(session, table, cursor, keys, size(keys, kind=c_size_t), &
            c_loc(values), size(values, kind=c_size_t), TW_I32, count)
    end function

    integer(c_int) function scan_i64(session, table, cursor, keys, count, values) result(status)
        type(c_ptr), intent(in) :: session
        integer(int64), intent(in) :: table
        type(tw_scan_cursor), intent(inout) :: cursor
        integer(int64), intent(out), contiguous :: keys(:)
        integer(c_size_t), intent(out) :: count
        integer(int64), intent(inout), target, contiguous :: values(:)
        status = tw_keys_scan_c(session, table, cursor, keys, size(keys, kind=c_size_t), &
            c_loc(values), size(values, kind=c_size_t), TW_I64, count)
    end function

    integer(c_int) function buffer_add_f32(session, buffer, keys, values) result(status)
        type(c_ptr), intent(in) :: session
        integer(int64), intent(in) :: buffer
        integer(int64), intent(in), contiguous :: keys(:)
        real(real32), intent(in), target, contiguous :: values(:)
        status = tw_buffer_add_c(session, buffer, keys, size(keys, kind=c_size_t), c_loc(values), &
            size(values, kind=c_size_t), TW_F32)
    end function

    integer(c_int) function buffer_add_f64(session, buffer, keys, values) result(status)
        type(c_ptr), intent(in) :: session
        integer(int64), intent(in) :: buffer
        integer(int64), intent(in), contiguous :: keys(:)
        real(real64), intent(in), target, contiguous :: values(:)
        status = tw_buffer_add_c(session, buffer, keys, size(keys, kind=c_size_t), c_loc(values), &
            size(values, kind=c_size_t), TW_F64)
    end function

    integer(c_int) function buffer_add_i32(session, buffer, keys, values) result(status)
        type(c_ptr), intent(in) :: session
        integer(int64), intent(in) :: buffer
        integer(int64), intent(in), contiguous :: keys(:)
        integer(int32), intent(in), target, contiguous :: values(:)
        status = tw_buffer_add_c(session, buffer, keys, size(keys, kind=c_size_t), c_loc(values), &
            size(values, kind=c_size_t), TW_I32)
    end function

    integer(c_int) function buffer_add_i64(session, buffer, keys, values) result(status)
        type(c_ptr), intent(in) :: session
        integer(int64), intent(in) :: buffer
        integer(int64), intent(in), contiguous :: keys(:)
        integer(int64), intent(in), target, contiguous :: values(:)
        status = tw_buffer_add_c(session, buffer, keys, size(keys, kind=c_size_t), c_loc(values), &
            size(values, kind=c_size_t), TW_I64)
    end function

    ! tw_update(session, target, expression [, ticket, inputs, parameters, first, count])
    !
    ! Sets each element of target to the value of an expression, such as "p0 * x + y". inputs: tables
    ! of x, y and z; without them, x is the target. parameters: values of p0, p1 and so on. first and
    ! count, which go together, limit the call to elements or rows of the table; they count from 0.
    integer(c_int) function tw_update(session, target, expression, ticket, inputs, parameters, &
            first, count) result(status)
        type(c_ptr), intent(in) :: session
        integer(int64), intent(in) :: target
        character(len=*), intent(in) :: expression
        integer(int64), intent(out), optional :: ticket
        integer(int64), intent(in), target, contiguous, optional :: inputs(:)
        real(real64), intent(in), target, contiguous, optional :: parameters(:)
        integer(int64), intent(in), optional :: first, count
        type(tw_function_options) :: options
        options = function_options(inputs, parameters, first, count)
        status = tw_update_c(session, target, tw_text(expression), options, ticket)
    end function

    integer(c_int) function reduce_real(session, target, expression, reduction, value, found, &
            inputs, parameters, first, count) result(status)
        type(c_ptr), intent(in) :: session
        integer(int64), intent(in) :: target
        character(len=*), intent(in) :: expression
        integer(c_int), intent(in) :: reduction
        real(real64), intent(inout), target :: value
        integer(c_int32_t), intent(inout), target, optional :: found
        integer(int64), intent(in), target, contiguous, optional :: inputs(:)
        real(real64), intent(in), target, contiguous, optional :: parameters(:)
        integer(int64), intent(in), optional :: first, count
        type(tw_function_options) :: options
        options = function_options(inputs, parameters, first, count)
        status = tw_reduce_c(session, target, tw_text(expression), reduction, options, c_loc(value), &
            c_null_ptr, found_of(found))
    end function

    integer(c_int) function reduce_integer(session, target, expression, reduction, value, found, &
            inputs, parameters, first, count) result(status)
        type(c_ptr), intent(in) :: session
        integer(int64), intent(in) :: target
        character(len=*), intent(in) :: expression
        integer(c_int), intent(in) :: reduction
        integer(int64), intent(inout), target :: value
        integer(c_int32_t), intent(inout), target, optional :: found
        integer(int64), intent(in), target, contiguous, optional :: inputs(:)
        real(real64), intent(in), target, contiguous, optional :: parameters(:)
        integer(int64), intent(in), optional :: first, count
        type(tw_function_options) :: options
        options = function_options(inputs, parameters, first, count)
        status = tw_reduce_c(session, target, tw_text(expression), reduction, options, c_null_ptr, &
            c_loc(value), found_of(found))
    end function

    ! tw_call_update(session, target, name, arguments [, ticket, inputs, parameters, first, count]):
    ! the update function that the servers' program registered under a name. arguments: its bytes.
    integer(c_int) function tw_call_update(session, target, name, arguments, ticket, inputs, &
            parameters, first, count) result(status)
        type(c_ptr), intent(in) :: session
        integer(int64), intent(in) :: target
        character(len=*), intent(in) :: name
        integer(int8), intent(in), target, contiguous :: arguments(:)
        integer(int64), intent(out), optional :: ticket
        integer(int64), intent(in), target, contiguous, optional :: inputs(:)
        real(real64), intent(in), target, contiguous, optional :: parameters(:)
        integer(int64), intent(in), optional :: first, count
        type(tw_function_options) :: options
        options = function_options(inputs, parameters, first, count)
        status = tw_call_update_c(session, target, tw_text(name), c_loc(arguments), &
            size(arguments, kind=c_size_t), options, ticket)
    end function

    ! tw_call_reduce(session, target, name, arguments, results, pieces, bytes [, inputs, parameters,
    ! first, count]): the session keeps the results of all pieces until tw_results_take.
    integer(c_int) function tw_call_reduce(session, target, name, arguments, results, pieces, &
            bytes, inputs, parameters, first, count) result(status)
        type(c_ptr), intent(in) :: session
        integer(int64), intent(in) :: target
        character(len=*), intent(in) :: name
        integer(int8), intent(in), target, contiguous :: arguments(:)
        integer(int64), intent(out) :: results
        integer(c_size_t), intent(out) :: pieces, bytes
        integer(int64), intent(in), target, contiguous, optional :: inputs(:)
        real(real64), intent(in), target, contiguous, optional :: parameters(:)
        integer(int64), intent(in), optional :: first, count
        type(tw_function_options) :: options
        options = function_options(inputs, parameters, first, count)
        status = tw_call_reduce_c(session, target, tw_text(name), c_loc(arguments), &
            size(arguments, kind=c_size_t), options, results, pieces, bytes)
    end function

    ! tw_results_take(session, results, out, lengths): results becomes 0.
    integer(c_int) function tw_results_take(session, results, out, lengths) result(status)
        type(c_ptr), intent(in) :: session
        integer(int64), intent(inout) :: results
        integer(int8), intent(inout), target, contiguous :: out(:)
        integer(c_size_t), intent(inout), target, contiguous :: lengths(:)
        status = tw_results_take_c(session, results, c_loc(out), size(out, kind=c_size_t), &
            c_loc(lengths), size(lengths, kind=c_size_t))
    end function

    ! The options of optional arguments. They point to the caller's arrays.
    function function_options(inputs, parameters, first, count) result(options)
        integer(int64), intent(in), target, contiguous, optional :: inputs(:)
        real(real64), intent(in), target, contiguous, optional :: parameters(:)
        integer(int64), intent(in), optional :: first, count
        type(tw_function_options) :: options
        if (present(inputs)) then
            options%inputs = c_loc(inputs)
            options%input_count = size(inputs, kind=c_size_t)
        end if
        if (present(parameters)) then
            options%parameters = c_loc(parameters)
            options%parameter_count = size(parameters, kind=c_size_t)
        end if
        if (present(count)) options%has_range = 1
        if (present(first)) options%first = first
        if (present(count)) options%count = count
    end function

    function found_of(found) result(at)
        integer(c_int32_t), intent(in), target, optional :: found
        type(c_ptr) :: at
        at = c_null_ptr
        if (present(found)) at = c_loc(found)
    end function

end module tidewater
