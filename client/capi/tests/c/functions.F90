! Functions at the data from Fortran: a table is doubled by an expression and summed. Buffers and
! schedules. Run by ci/bindings.sh.
!
!   functions COORDINATOR TOKEN_FILE    of client/tidewater/examples/functions.rs
program functions
    use, intrinsic :: iso_c_binding
    use, intrinsic :: iso_fortran_env, only: int8, int32, int64, real64
    use tidewater
    implicit none
    integer(int64), parameter :: elements = 100000
    type(c_ptr) :: session
    integer(int64) :: x, y, n, ticket, whole, results
    integer(c_size_t) :: pieces, bytes
    integer(int32) :: found
    real(real64) :: total, pulled(2)
    integer(int8) :: no_bytes(0), one_byte(1)
    integer(int8), allocatable :: out(:)
    integer(c_size_t), allocatable :: lengths(:)
    integer(int64), allocatable :: numbers(:)
    type(tw_push_options) :: weighted

    call open_session()
    x = table_of("x", TW_F64)
    y = table_of("y", TW_F64)
    n = table_of("n", TW_I64)
    call check(tw_update(session, x, "index", ticket) == TW_OK, "update")
    call check(tw_push_forget(session, ticket) == TW_OK, "forget")
    call check(tw_update(session, x, "2 * x") == TW_OK, "doubles, without a ticket")
    call check(tw_flush(session) == TW_OK, "flush")
    call check(tw_reduce(session, x, "x", TW_REDUCE_SUM, total) == TW_OK, "reduce")
    call check(nint(total, int64) == elements*(elements - 1), "the doubled table is summed")

    call check(tw_update(session, y, "p0 * x + y", ticket, inputs=[x, y], parameters=[3d0], &
        first=elements - 1, count=1_int64) == TW_OK, "one element")
    call check(tw_push_wait(session, ticket, 0d0) == TW_OK, "wait for one element")
    call check(tw_pull_range(session, y, elements - 2, pulled) == TW_OK, "pull")
    call check(all(nint(pulled, int64) == [0_int64, 6*(elements - 1)]), "one element is updated")
    weighted%weight = 2
    weighted%has_weight = 1
    weighted%encoding = TW_F16
    call check(tw_push_range(session, y, elements - 2, [1d0, 0d0], TW_SUM, ticket, weighted) == TW_OK, &
        "a weighted push")
    call check(tw_push_wait(session, ticket, 0d0) == TW_OK, "wait for the weighted push")
    call check(tw_pull_range(session, y, elements - 2, pulled) == TW_OK, "pull again")
    call check(nint(pulled(1), int64) == 2, "a weight doubles the sum")
    call check(tw_update(session, n, "9007199254740993", ticket) == TW_OK, "integers")
    call check(tw_push_wait(session, ticket, 0d0) == TW_OK, "wait for integers")
    call check(tw_reduce(session, n, "x", TW_REDUCE_MAX, whole) == TW_OK, "largest integer")
    call check(whole == 9007199254740993_int64, "integers are exact")
    call check(tw_reduce(session, n, "x", TW_REDUCE_MIN, whole, found, first=0_int64, &
        count=0_int64) == TW_OK .and. found == 0, "nothing has no minimum")

    call check(tw_call_update(session, x, "scale", transfer(0.5d0, no_bytes), ticket) == TW_OK, &
        "a function by name")
    call check(tw_push_wait(session, ticket, 0d0) == TW_OK, "wait for the function")
    call check(tw_reduce(session, x, "x", TW_REDUCE_MAX, total) == TW_OK, "maximum")
    call check(nint(total, int64) == elements - 1, "the function halves the table")
    call check(tw_call_reduce(session, x, "scale", no_bytes, results, pieces, bytes) == TW_OK, &
        "a reducing function")
    allocate (out(bytes), lengths(pieces), numbers(bytes/8))
    call check(tw_results_take(session, results, out, lengths) == TW_OK, "results")
    numbers = transfer(out, numbers)
    call check(results == 0 .and. all(lengths == 16), "lengths")
    call check(sum(numbers(2::2)) == elements, "pieces cover the table")

    call check(tw_update(session, x, "x + ", ticket) == TW_ERR_ARGUMENT, "a wrong expression")
    ! tw_text drops the blank at the end.
    call check(index(tw_last_error(), "byte 3") > 0, "its position")
    call check(tw_reduce(session, x, "x", TW_REDUCE_SUM, whole) == TW_ERR_ARGUMENT, "an integer of floats")
    call check(tw_update(session, x, "x", ticket, first=1_int64) == TW_ERR_ARGUMENT, "first without count")
    one_byte = 7_int8
    call check(tw_call_update(session, x, "missing", one_byte, ticket) == TW_OK, "a call")
    call check(tw_push_wait(session, ticket, 0d0) == TW_ERR_REJECTED, "no such function")
    call check(tw_call_reduce(session, x, "missing", no_bytes, results, pieces, bytes) == &
        TW_ERR_REJECTED, "no such reducing function")
    call check(results == 0, "no results")
    call check(tw_results_forget(session, results) == TW_ERR_HANDLE, "nothing to forget")
    call merges_and_schedules()
    call keys_of_a_table()
    call vectors()
    call check(tw_finish(session) == TW_OK, "finish")
    call check(tw_session_free(session) == TW_OK, "free")
    print '(a)', "ok"

contains

    subroutine check(holds, what)
        logical, intent(in) :: holds
        character(len=*), intent(in) :: what
        if (holds) return
        print '(4a)', "not so: ", what, ": ", tw_last_error()
        error stop 1
    end subroutine

    ! Many small updates are one push, and a schedule sets the rate.
    subroutine merges_and_schedules()
        integer(int64) :: table, buffer
        integer(int64), parameter :: keys(3) = [7_int64, 3_int64, 7_int64]
        real(real64) :: sums(2), rate
        type(tw_buffer_options) :: options
        type(tw_schedule) :: schedule
        table = sparse_table("sparse")
        call check(tw_buffer_create(session, table, options, buffer) == TW_OK, "buffer")
        call check(tw_buffer_add(session, buffer, keys, [1d0, 1d0, 1d0]) == TW_OK, "add")
        call check(tw_buffer_describe(session, buffer, pieces, bytes) == TW_OK, "describe")
        call check(pieces == 2 .and. bytes == 32, "values of one key are added up")
        call check(tw_buffer_free(session, buffer) == TW_ERR_ARGUMENT, "it has rows")
        call check(tw_buffer_flush(session, buffer, 1, ticket) == TW_OK, "flush")
        call check(tw_push_wait(session, ticket, 0d0) == TW_OK, "wait for the buffer")
        call check(tw_pull_rows(session, table, keys(:2), sums) == TW_OK, "pull sums")
        call check(all(nint(sums, int64) == [2_int64, 1_int64]), "a flush pushes the sums")
        call check(tw_buffer_add(session, buffer, keys, [1d0, 1d0, 1d0]) == TW_OK, "add again")
        call check(tw_buffer_clear(session, buffer) == TW_OK, "clear")
        call check(tw_buffer_free(session, buffer) == TW_OK .and. buffer == 0, "free the buffer")

        schedule = tw_schedule(kind=TW_SCHEDULE_STEP, rate=1d0, factor=0.5d0, every=10)
        call check(tw_schedule_rate(schedule, 29_int64, rate) == TW_OK, "rate")
        call check(nint(8*rate) == 2, "the third run")
        call check(tw_table_schedule(session, table, schedule, 10_int64, ticket) == TW_OK, "schedule")
        call check(tw_push_wait(session, ticket, 0d0) == TW_OK, "wait for the rate")
        call check(tw_push_rows(session, table, keys(:1), [1d0], TW_GRADIENT, ticket) == TW_OK, "step")
        call check(tw_push_wait(session, ticket, 0d0) == TW_OK, "wait for the step")
        call check(tw_pull_rows(session, table, keys(:2), sums) == TW_OK, "pull the step")
        call check(nint(2*sums(1)) == 3, "the rate is that of the schedule")
    end subroutine

    ! Keys are stored, listed, deleted and counted.
    subroutine keys_of_a_table()
        integer(int64) :: table, listed(5), stored_keys
        integer(int64), parameter :: keys(3) = [7_int64, 3_int64, 1_int64]
        logical :: stored(3)
        real(real64) :: rows(5)
        type(tw_scan_cursor) :: cursor
        integer(c_size_t) :: n
        table = sparse_table("keys")
        call check(tw_push_rows(session, table, keys, [1d0, 1d0, 1d0], TW_SUM, ticket) == TW_OK, "rows")
        call check(tw_push_wait(session, ticket, 0d0) == TW_OK, "wait for rows")
        call check(tw_keys_delete(session, table, keys(2:2), ticket) == TW_OK, "delete")
        call check(tw_push_wait(session, ticket, 0d0) == TW_OK, "wait for the deletion")
        call check(tw_keys_exist(session, table, keys, stored) == TW_OK, "exist")
        call check(stored(1) .and. .not. stored(2) .and. stored(3), "one row is deleted")
        call check(tw_keys_count(session, table, stored_keys) == TW_OK .and. stored_keys == 2, "count")
        call check(tw_keys_scan(session, table, cursor, listed, n, rows) == TW_OK, "scan")
        call check(n == 2 .and. sum(listed(:2)) == 8 .and. all(nint(rows(:2)) == 1), "rows of a scan")
        call check(tw_keys_scan(session, table, cursor, listed, n) == TW_OK .and. n == 0, "the end")
    end subroutine

    subroutine vectors()
        integer(int64) :: a, b
        real(real64) :: number, three(3)
        call check(tw_vector_create(session, tw_text("vector-a"), 3_int64, TW_F64, a) == TW_OK, "vector a")
        call check(tw_vector_create(session, tw_text("vector-b"), 3_int64, TW_F64, b) == TW_OK, "vector b")
        call check(tw_push_range(session, a, 0_int64, [-1d0, 2d0, -3d0], TW_ASSIGN, ticket) == TW_OK, "set a")
        call check(tw_vector_fill(session, b, 0.5d0) == TW_OK, "fill")
        call check(tw_vector_axpy(session, b, 2d0, a) == TW_OK, "axpy")
        call check(tw_vector_dot(session, a, b, number) == TW_OK .and. nint(number) == 27, "dot")
        call check(tw_vector_scale(session, b, -2d0) == TW_OK, "scale")
        call check(tw_flush(session) == TW_OK, "flush")
        call check(tw_pull_range(session, b, 0_int64, three) == TW_OK, "pull b")
        call check(all(nint(three) == [3, -9, 11]), "elements")
        call check(tw_vector_copy(session, b, a) == TW_OK, "copy")
        call check(tw_vector_norm(session, b, TW_NORM_1, number) == TW_OK .and. nint(number) == 6, "norm 1")
        call check(tw_vector_norm(session, b, TW_NORM_2, number) == TW_OK, "norm 2")
        call check(nint(1000*number**2) == 14000, "the norm is that of a")
        call check(tw_vector_norm(session, b, TW_NORM_MAX, number) == TW_OK .and. nint(number) == 3, "largest")
    end subroutine

    subroutine open_session()
        type(tw_session_options) :: options
        character(len=:, kind=c_char), allocatable, target :: coordinator, token_file, job_namespace
        character(len=4096) :: argument
        call get_command_argument(1, argument)
        coordinator = tw_text(argument)
        call get_command_argument(2, argument)
        token_file = tw_text(argument)
        job_namespace = tw_text("functions-fortran")
        options%coordinator = c_loc(coordinator)
        options%token_file = c_loc(token_file)
        options%job_namespace = c_loc(job_namespace)
        options%workers = 1
        call check(tw_session_open(options, session) == TW_OK, "open")
    end subroutine

    integer(int64) function table_of(name, dtype) result(table)
        character(len=*), intent(in) :: name
        integer(c_int), intent(in) :: dtype
        type(tw_table_options) :: options
        character(len=:, kind=c_char), allocatable, target :: text
        text = tw_text(name)
        options%name = c_loc(text)
        options%dtype = dtype
        options%kind = TW_RANGE
        options%rows = elements
        options%cols = 1
        call check(tw_table_create(session, options, table) == TW_OK, "create")
    end function

    integer(int64) function sparse_table(name) result(table)
        character(len=*), intent(in) :: name
        type(tw_table_options) :: options
        character(len=:, kind=c_char), allocatable, target :: text
        text = tw_text(name)
        options%name = c_loc(text)
        options%dtype = TW_F64
        options%kind = TW_SPARSE
        options%cols = 1
        options%optimizer = TW_SGD
        options%hyper(1) = 1
        call check(tw_table_create(session, options, table) == TW_OK, "create a sparse table")
    end function

end program
